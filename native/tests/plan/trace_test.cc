// TRIVET_TRACE writes an event per op that ran.
#include "plan/trace.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "check.h"
#include "core/run_watch.h"
#include "core/thread_pool.h"
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
  // Two pieces of work that wait for each other, so that the worker has one of them.
  ThreadPool pool(2);
  std::atomic<int> met{0};
  RunWatch::label = "meeting";
  pool.parallel_for(2, 1, [&](int64_t, int64_t) {
    ++met;
    while (met != 2) {
    }
  });
  RunWatch::label = "";
  Trace::get()->flush();
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::remove(path.c_str());

  // A take, two appends, attention, a sum; no rows are wanted, so nothing after that runs.
  std::string line;
  std::vector<std::string> events;
  CHECK(std::getline(text, line) && line == "[");
  while (std::getline(text, line)) events.push_back(line);
  CHECK(events.size() == 6);
  CHECK(events[0].rfind("{\"name\": \"take\", \"ph\": \"X\", \"ts\": ", 0) == 0);
  CHECK(events[0].find("{\"made\": \"f32[3, ") != std::string::npos);
  CHECK(events[3].find("\"paged_attention\"") != std::string::npos);
  CHECK(events[5].find("\"meeting\"") != std::string::npos);
  CHECK(events[5].find("\"tid\": 1, \"args\": {\"made\": \"\"}}") != std::string::npos);
  for (const std::string& event : events) CHECK(event.size() > 2 && event.substr(event.size() - 2) == "},");
  return check_result();
}
