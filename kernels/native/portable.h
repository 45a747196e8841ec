// What the kernels for GPUs share with those for the CPU is compiled for both wherever nvcc compiles it.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ON_BOTH __host__ __device__
#else
#define ON_BOTH
#endif

namespace attnfuzz {

// std::min and std::max are not there on a GPU.
ON_BOTH constexpr int64_t smaller(int64_t a, int64_t b) { return b < a ? b : a; }
ON_BOTH constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

}  // namespace attnfuzz
