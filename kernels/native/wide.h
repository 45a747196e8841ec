// WIDE marks a loop worth running on 8 lanes if the processor has them. Every build contains both versions, which give
// the same bits: no fused multiply-add, and sums have a fixed number of lanes in the source.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
