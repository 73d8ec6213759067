// ARM's products of unsigned codes with signed bytes, for weight_products-inl.h: THALWEG_ARM_DOTS is 1 for sdot, 2 for
// usdot and usmmla, undefined for what every processor has. Sums of integers: all of them have the same bits.

#include <arm_neon.h>

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {

// sum + the products of each lane's four unsigned codes with four signed bytes.
template <bool kNarrow>
HWY_INLINE hn::Vec<I32> arm_dot4(hn::Vec<I32> sum, VU codes, std::int32_t bytes) {
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
#if THALWEG_ARM_DOTS == 2
  return hn::Vec<I32>(vusdotq_s32(sum.raw, vreinterpretq_u8_u32(codes.raw), x));
#elif THALWEG_ARM_DOTS == 1
  if constexpr (kNarrow) return hn::Vec<I32>(vdotq_s32(sum.raw, vreinterpretq_s8_u32(codes.raw), x));
  // Codes beyond 127, signed after 128 is taken away, and 128 = 64 + 64 times the bytes.
  const int8x16_t w = vreinterpretq_s8_u32(veorq_u32(codes.raw, vdupq_n_u32(0x80808080U)));
  const int8x16_t half = vdupq_n_s8(64);
  return hn::Vec<I32>(vdotq_s32(vdotq_s32(vdotq_s32(sum.raw, w, x), half, x), half, x));
#else
  // 255 * 127 fits 16 bits.
  const uint8x16_t w = vreinterpretq_u8_u32(codes.raw);
  const int16x8_t x16 = vmovl_s8(vget_low_s8(x));
  const int16x8_t low = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w))), x16);
  const int16x8_t high = vmulq_s16(vreinterpretq_s16_u16(vmovl_high_u8(w)), x16);
  return hn::Vec<I32>(vaddq_s32(sum.raw, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))));
#endif
}

#if THALWEG_ARM_DOTS == 2
// multiply_group() for an even number of rows: two weight rows times two rows of activations, eight codes at a time.
template <int kRows>
HWY_INLINE void multiply_row_pairs(const std::uint32_t* codes, int words, const std::int8_t* const* x,
                                   hn::Vec<I32>* dots) {
  static_assert(kLanes == 4);
  int32x4_t rows01[kRows / 2];
  int32x4_t rows23[kRows / 2];
  for (int pair = 0; pair < kRows / 2; ++pair) rows01[pair] = rows23[pair] = vdupq_n_s32(0);
  for (int word = 0; word < words; word += 2) {
    const uint32x4_t even = vld1q_u32(codes + word * kLanes);
    const uint32x4_t odd = vld1q_u32(codes + (word + 1) * kLanes);
    const uint8x16_t codes01 = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
    const uint8x16_t codes23 = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
    for (int pair = 0; pair < kRows / 2; ++pair) {
      const int8x16_t both = vcombine_s8(vld1_s8(x[2 * pair] + 4 * word), vld1_s8(x[2 * pair + 1] + 4 * word));
      rows01[pair] = vusmmlaq_s32(rows01[pair], codes01, both);
      rows23[pair] = vusmmlaq_s32(rows23[pair], codes23, both);
    }
  }
  for (int pair = 0; pair < kRows / 2; ++pair) {
    dots[2 * pair] = hn::Add(dots[2 * pair], hn::Vec<I32>(vuzp1q_s32(rows01[pair], rows23[pair])));
    dots[2 * pair + 1] = hn::Add(dots[2 * pair + 1], hn::Vec<I32>(vuzp2q_s32(rows01[pair], rows23[pair])));
  }
}
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();
