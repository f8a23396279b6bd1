// TRIVET_TRACE writes an event per op that ran.
#include "plan/trace.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "check.h"
#include "plan/toy_model.h"

using namespace tv;

int main() {
  const std::string path = "trace_test.json";
  setenv("TRIVET_TRACE", "no-such-folder/trace.json", 1);
  CHECK_THROWS(Status::io, toy_engine({1, 1, 100, 0}));
  setenv("TRIVET_TRACE", path.c_str(), 1);
  const auto session = toy_engine({1, 1, 100, 0})->open();
  const std::vector<int32_t> ids = {1, 2, 3};
  const Feed feed{session.get(), ids, {}};
  session->engine().step({&feed, 1}, nullptr);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::remove(path.c_str());

  // A take, two appends, attention, a sum; no rows are wanted, so nothing after that runs.
  std::string line;
  std::vector<std::string> events;
  CHECK(std::getline(text, line) && line == "[");
  while (std::getline(text, line)) events.push_back(line);
  CHECK(events.size() == 5);
  CHECK(events[0].rfind("{\"name\": \"take\", \"cat\": \"toy\", \"ph\": \"X\", \"ts\": ", 0) == 0);
  CHECK(events[3].find("\"paged_attention\"") != std::string::npos);
  for (const std::string& event : events) CHECK(event.size() > 2 && event.substr(event.size() - 2) == "},");
  return check_result();
}
