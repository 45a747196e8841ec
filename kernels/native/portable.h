// Code shared by the kernels for GPUs and for the CPU; nvcc compiles it for both.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ON_BOTH __host__ __device__
#else
#define ON_BOTH
#endif

namespace attnfuzz {

// std::min and std::max do not exist on a GPU.
ON_BOTH constexpr int64_t smaller(int64_t a, int64_t b) { return b < a ? b : a; }
ON_BOTH constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

}  // namespace attnfuzz
