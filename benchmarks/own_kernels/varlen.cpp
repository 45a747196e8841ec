// Varlen prefill with a paged prefix: tiles of BM queries by BN keys, online softmax. bfloat16 in and out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
typedef uint16_t bf16;
static float up(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
static bf16 down(float f) {
  uint32_t u; memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  u += 0x7fff + ((u >> 16) & 1);
  return u >> 16;
}
constexpr int BM = 16, BN = 32;

extern "C" void varlen_prefill(bf16* out, const bf16* q, const bf16* k, const bf16* v, const int32_t* tables,
                               const int32_t* seq_lens, const int32_t* cu_q, int batch, int table_width, int heads,
                               int kv_heads, int dim, int page_size, int64_t kv_page_stride, int64_t kv_token_stride,
                               int64_t kv_head_stride, float scale, const float* sinks) {
  int group = heads / kv_heads;
  std::vector<float> acc(BM * dim), m(BM), l(BM), s(BM * BN);
  for (int b = 0; b < batch; b++) {
    int q0 = cu_q[b], qn = cu_q[b + 1] - q0, kn = seq_lens[b];
    const int32_t* pages = tables + (int64_t)b * table_width;
    for (int h = 0; h < heads; h++) {
      int hk = h / group;
      for (int i0 = 0; i0 < qn; i0 += BM) {
        int rows = std::min(BM, qn - i0);
        for (int i = 0; i < rows; i++) {
          m[i] = sinks ? sinks[h] : -INFINITY;
          l[i] = sinks ? 1.f : 0.f;
          for (int d = 0; d < dim; d++) acc[i * dim + d] = 0;
        }
        int last = std::min(kn, kn - qn + i0 + rows);  // keys that the tile's last query sees
        for (int j0 = 0; j0 < last; j0 += BN) {
          int cols = std::min(BN, last - j0);
          for (int i = 0; i < rows; i++) {
            int limit = kn - qn + i0 + i;  // position of the query
            float top = m[i];
            for (int j = 0; j < cols; j++) {
              int n = j0 + j;
              float x = -INFINITY;
              if (n <= limit) {
                const bf16* kr = k + pages[n / page_size] * kv_page_stride + (n % page_size) * kv_token_stride + hk * kv_head_stride;
                const bf16* qr = q + ((int64_t)(q0 + i0 + i) * heads + h) * dim;
                x = 0;
                for (int d = 0; d < dim; d++) x += up(qr[d]) * up(kr[d]);
                x *= scale;
              }
              s[i * BN + j] = x;
              top = std::max(top, x);
            }
            if (top == -INFINITY) continue;
            float fix = m[i] == -INFINITY ? 0 : std::exp(m[i] - top);
            l[i] *= fix;
            for (int d = 0; d < dim; d++) acc[i * dim + d] *= fix;
            for (int j = 0; j < cols; j++) {
              int n = j0 + j;
              if (n > limit) continue;
              float p = std::exp(s[i * BN + j] - top);
              l[i] += p;
              const bf16* vr = v + pages[n / page_size] * kv_page_stride + (n % page_size) * kv_token_stride + hk * kv_head_stride;
              for (int d = 0; d < dim; d++) acc[i * dim + d] += p * up(vr[d]);
            }
            m[i] = top;
          }
        }
        for (int i = 0; i < rows; i++)
          for (int d = 0; d < dim; d++)
            out[((int64_t)(q0 + i0 + i) * heads + h) * dim + d] = down(l[i] > 0 ? acc[i * dim + d] / l[i] : 0.f);
      }
    }
  }
}
