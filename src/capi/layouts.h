#pragma once

// The layouts that the structs of thalweg.h and thalweg_ranks.h have had: a row for each struct, and another one below
// it for each later version of the library that appended fields. Rows are never changed or removed; `test_abi` compares
// them with the header, and prints the row that is missing.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace thalweg::capi {

struct Layout {
  std::string_view name;  // without "thalweg_"
  int abi;                // THALWEG_ABI_VERSION
  std::size_t size;       // bytes
  std::uint64_t hash;     // of the fields' names, offsets and sizes
};

inline constexpr Layout kLayouts[] = {
    {"add_args", 5, 344, 0xE1E93002F67FC51C},
    {"advance_args", 5, 792, 0x2333B3B13C6A079F},
    {"attention_args", 5, 1024, 0x0D16E54BA476C4E3},
    {"attention_args", 11, 1032, 0xA0EA4C1EFED86B1E},
    {"causal_conv1d_args", 5, 912, 0xC225AA96142A14C7},
    {"causal_conv1d_update_args", 5, 688, 0x07BFB6F0F087357A},
    {"chat_message", 5, 16, 0x42D1FBD1150DB79C},
    {"chunk_gated_delta_rule_args", 5, 2056, 0xF67282059F2F3580},
    {"chunk_gated_delta_rule_args", 11, 2064, 0x10FFB74F29B7CC14},
    {"chunk_local_cumsum_args", 5, 352, 0x12897F614DE3ACFC},
    {"chunk_output_args", 5, 816, 0x260F6A50F2A63655},
    {"chunk_scaled_dot_kkt_args", 5, 584, 0xA3609480EEE97C94},
    {"chunk_state_args", 5, 1144, 0x425BF193D4694002},
    {"dequantize_args", 5, 232, 0x16A0482549A56070},
    {"device", 5, 8, 0xA889CC1DD089249B},
    {"embedding_args", 5, 344, 0x8CC2CC926F222DF1},
    {"engine_counts", 5, 128, 0xCB3B39AD30196CC9},
    {"engine_counts", 7, 136, 0x5764E410F04D0E86},
    {"engine_options", 5, 48, 0x2B682AEBDC49F05D},
    {"engine_options", 6, 56, 0x460DDF0B21AE86AD},
    {"engine_options", 7, 64, 0x5ED76456F456DB34},
    {"expert_rows_args", 5, 456, 0x8C0ABFF716415719},
    {"gate_inputs", 5, 448, 0x4B6B8AD00606788C},
    {"gated_delta_prep_step_args", 5, 1944, 0x07F648B499E01CA2},
    {"gated_delta_prep_step_args", 6, 2512, 0x825B43FD86BA6763},
    {"gated_rms_norm_args", 5, 464, 0x6498F4520721A4C5},
    {"generated", 5, 56, 0x2BE174A04FB5A2A1},
    {"l2norm_args", 5, 240, 0xC6AF3335AD260849},
    {"linear_args", 5, 464, 0x44B269CDD0F22B3A},
    {"logprobs_args", 5, 568, 0x23F94B20F6AA937B},
    {"model_options", 5, 80, 0x6F2A60389B960266},
    {"model_options", 6, 88, 0xEA5BCF8DD4C033AF},
    {"model_options", 9, 104, 0x0720FE60D17ED80E},
    {"model_options", 11, 112, 0xBD55809495F20407},
    {"moe_ffn_args", 5, 1144, 0xCC96B9E929C47E21},
    {"moe_ffn_args", 6, 1152, 0x2595AF4DD6E176AD},
    {"moe_ffn_args", 10, 1272, 0x2D117FA25039BCA7},
    {"mul_mat_id_args", 5, 576, 0x262E241CFCB94562},
    {"mul_mm_id_args", 5, 576, 0x262E241CFCB94562},
    {"mul_mv_id_args", 5, 576, 0x262E241CFCB94562},
    {"output", 5, 128, 0xE30572BB9BD9EEC4},
    {"projections_args", 10, 1024, 0x477B2FE34D979769},
    {"quantize_args", 5, 232, 0x8AEC40841EC2E308},
    {"rank_memory", 9, 56, 0xD47A095F5863A91A},
    {"rank_options", 9, 296, 0xA198764E066100AD},
    {"recompute_w_u_args", 5, 920, 0xA862F5E9423177C1},
    {"recurrent_gated_delta_rule_args", 5, 2048, 0x39F7A66A07E03E80},
    {"request", 5, 80, 0xF5B0339B43CFF9E7},
    {"rms_norm_args", 5, 576, 0x097338F2CCCFD336},
    {"rope_args", 5, 592, 0x9B00D51E3A0080C5},
    {"route_top_k_args", 5, 464, 0xB81A5BD0C9C66E22},
    {"sample_tokens_args", 5, 1464, 0x7ACF7D476AEB52EC},
    {"sample_tokens_args", 8, 1576, 0xD9809F4ED223A268},
    {"sampling", 5, 40, 0xBE1821B504107D2B},
    {"solve_tril_args", 5, 352, 0x69BA34409394E2AB},
    {"split_qkvz_args", 5, 568, 0x42BA34F79AFF510E},
    {"store_kv_args", 5, 904, 0xEE5D426C24112150},
    {"stream", 5, 40, 0xC68DD75F88C6A72F},
    {"swiglu_args", 5, 344, 0xB0941EF34C3B7169},
    {"tensor", 5, 112, 0x25B27B214A31D80B},
    {"thread_pool", 5, 16, 0x53F9B24F29CECC09},
};

}  // namespace thalweg::capi
