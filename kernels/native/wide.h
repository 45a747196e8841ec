// WIDE marks a loop worth running on 8 lanes if the processor has them. Every build contains both versions. They give
// the same bits: there is no fused multiply-add, and the source fixes the number of lanes of each sum.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
