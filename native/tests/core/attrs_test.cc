// Attributes: found by key, and only as the type they have.
#include "core/attrs.h"

#include "check.h"

using namespace tv;

int main() {
  Attrs attrs;
  attrs.add("i", int64_t{-3});
  attrs.add("r", 0.25);
  attrs.add("t", std::string("abc"));
  attrs.add("is", std::vector<int64_t>{1, 2, 3});
  CHECK(attrs.has("i") && !attrs.has("j"));
  CHECK(attrs.i64("i") == -3 && attrs.i64("i", 9) == -3 && attrs.i64("j", 9) == 9);
  CHECK(attrs.f64("r") == 0.25 && attrs.f64("q", 0.5) == 0.5);
  CHECK(attrs.str("t") == "abc" && attrs.str("u", "x") == "x");
  CHECK(attrs.ints("is").size() == 3);
  CHECK_THROWS(Status::bad_plan, attrs.i64("j"));
  CHECK_THROWS(Status::bad_plan, attrs.f64("i"));
  CHECK_THROWS(Status::bad_plan, attrs.f64("i", 0.5));
  CHECK_THROWS(Status::bad_plan, attrs.i64("t", 1));
  CHECK_THROWS(Status::bad_plan, attrs.str("is"));
  CHECK_THROWS(Status::bad_plan, attrs.ints("i"));
  return check_result();
}
