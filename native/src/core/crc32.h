// CRC-32 as zlib, PNG and IEEE 802.3 have it: reflected polynomial 0xEDB88320, starting and ending inverted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv {

uint32_t crc32(const void* data, size_t size);

}  // namespace tv
