// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011): four words of 32 bits from a counter, a stream
// and a key.
#pragma once

namespace {
typedef unsigned long long u64;

struct Words {
  unsigned of[4];
};
__device__ __forceinline__ Words philox(u64 counter, u64 stream, u64 key) {
  unsigned c0 = static_cast<unsigned>(counter), c1 = static_cast<unsigned>(counter >> 32);
  unsigned c2 = static_cast<unsigned>(stream), c3 = static_cast<unsigned>(stream >> 32);
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
}  // namespace
