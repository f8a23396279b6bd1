// CRC-32 against the check value of its definition.
#include "core/crc32.h"

#include "check.h"

int main() {
  CHECK(tv::crc32("123456789", 9) == 0xcbf43926u);
  CHECK(tv::crc32("", 0) == 0);
  CHECK(tv::crc32("\0", 1) == 0xd202ef8du);
  return check_result();
}
