#pragma once

// The dense operations around the gated delta rule in a hybrid decoder. Activations are f32, f16 or bf16; arithmetic is
// f32 and results are rounded once, when stored. T tokens are rows: batches are packed along T. Inputs and outputs may
// be strided views, innermost dimension contiguous. An output overlaps no input unless the contract names the pair. Any
// thread may call these functions.

#include <optional>
#include <string_view>

#include "thalweg/api.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

enum class Activation : std::uint8_t { kNone, kSilu };

// Causal depthwise convolution along T: y_t = act(bias + sum_j weight[c,j] x_{t-W+1+j}), inputs before a sequence's
// start taken from its state or zero.
struct CausalConv1dArgs {
  static constexpr std::string_view kName = "causal_conv1d";
  ConstTensor x;              // [B,T,C]
  ConstTensor weight;         // [C,W], any float dtype, W in 2..8; the newest token's tap last
  ConstTensor bias;           // [C], dtype of weight, optional
  ConstTensor initial_state;  // [N,C,W-1] or a pool, any float dtype, optional (zero): the inputs before, oldest first
  Tensor final_state;         // like initial_state, optional; may be initial_state itself: the last W-1 inputs
  ConstTensor state_indices;  // [N] i32, optional; -1: zero state, write nothing
  ConstTensor cu_seqlens;     // [N+1] i32, optional, B = 1
  Tensor y;                   // [B,T,C], dtype of x; not x itself
  Activation activation = Activation::kNone;
};

// The same for decode: T (few) tokens of each of B sequences, the state updated in place.
struct CausalConv1dUpdateArgs {
  static constexpr std::string_view kName = "causal_conv1d_update";
  ConstTensor x;              // [B,T,C]
  ConstTensor weight;         // [C,W]
  ConstTensor bias;           // [C], optional
  Tensor conv_state;          // [B,C,W-1] or a pool [slots,C,W-1], any float dtype
  ConstTensor state_indices;  // [B] i32, optional; -1: zero state, write nothing
  Tensor y;                   // [B,T,C], dtype of x; may be x itself
  Activation activation = Activation::kNone;
};

// y = s * rsqrt(mean s^2 + eps) * weight, or * (1 + weight) for the zero-centered norms of these models; s is x, or x +
// delta: a block's output joins the residual stream in the norm that follows.
struct RmsNormArgs {
  static constexpr std::string_view kName = "rms_norm";
  ConstTensor x;       // [T,D] or [T,H,D]
  ConstTensor delta;   // shape of x, any float dtype, optional
  ConstTensor weight;  // [D], any float dtype
  Tensor sum;          // like x, optional, only with delta: s; may be x itself
  Tensor y;            // shape of x, any float dtype; may be x or delta itself
  float eps = 1e-6F;
  bool weight_plus_one = false;
};

// y = x * rsqrt(mean x^2 + eps) * weight * silu(z), per head over D.
struct GatedRmsNormArgs {
  static constexpr std::string_view kName = "gated_rms_norm";
  ConstTensor x;       // [T,H,D]
  ConstTensor z;       // [T,H,D], dtype of x
  ConstTensor weight;  // [D], any float dtype
  Tensor y;            // [T,H,D], dtype of x or f32; may be x or z itself
  float eps = 1e-6F;
};

// Half-split rotary embedding of the first rotary_dim dimensions of each head: rotates the pair (i, i + rotary_dim/2)
// by positions[t] * frequencies[i] and multiplies it by `scale`; the other dimensions pass through. Without frequencies
// they are theta^(-2i/rotary_dim), rounded to f32. The angles are f64. With norm_weight each head is normalized first,
// as by rms_norm.
struct RopeArgs {
  static constexpr std::string_view kName = "rope";
  ConstTensor x;            // [T,H,D]
  ConstTensor positions;    // [T] i32, 0 or more
  ConstTensor frequencies;  // [rotary_dim/2] f32, finite, optional: those of a context that was scaled (YaRN, linear)
  ConstTensor norm_weight;  // [D], any float dtype, optional
  Tensor y;                 // like x; may be x itself
  int rotary_dim = 0;       // even, 2..D
  float theta = 1e7F;       // not read with frequencies
  float scale = 1.0F;       // of cosines and sines, positive: YaRN's attention factor
  float norm_eps = 1e-6F;
  bool norm_weight_plus_one = false;
};

// Grouped-query causal attention of new tokens over a cache that already holds their keys and values. Query head h
// reads key head h / (HQ/HKV). Token i (of T_n new ones) of sequence n sees cache positions 0 .. lengths[n] - T_n + i.
// A sequence without a slot or page (slots[n] or pages[n,0] is -1) is absent: its rows of o are zero.
// With a cache of 16 or 8 bits, kernels of 16-bit arithmetic may round q to the cache's dtype (f16: after scaling the
// row by a power of two, so that nothing overflows) and the softmax's weights to 16 bits; sums are f32. Of a cache of
// Q8_0 they round q, the keys and the values to f16. They multiply masked values by zero: a value of the same call that
// is not finite may reach tokens before it.
struct AttentionArgs {
  static constexpr std::string_view kName = "attention";
  ConstTensor q;           // [T,HQ,D], packed
  ConstTensor k_cache;     // [slots,S,HKV,D], any float dtype, or Q8_0 at an even address if D is a multiple of 32
  ConstTensor v_cache;     // [slots,S,HKV,D], dtype of k_cache
  ConstTensor cu_seqlens;  // [N+1] i32: the new tokens of each sequence
  ConstTensor lengths;     // [N] i32: tokens in the cache, the new ones included; T_n <= lengths[n] <= S
  ConstTensor slots;       // [N] i32, optional: the sequence's slot of the cache, -1: absent; n without it
  // [N,P] i32, optional, instead of slots: the caches are [pages,S,HKV,D], position i of sequence n is i % S of page
  // pages[n,i/S], and lengths[n] <= P*S. Entries beyond the length are not read, but the first: -1 there means absent.
  ConstTensor pages;
  ConstTensor gate;            // [T,HQ,D], dtype of q, optional: the output is multiplied by sigmoid(gate)
  Tensor o;                    // [T,HQ,D], dtype of q or f32
  std::optional<float> scale;  // nullopt: D^-1/2
  // q, keys and values of any dtype may be rounded to bf16 where bf16 products are faster: errors are those of bf16
  // inputs.
  bool bf16_operands = false;
};

// Stores new tokens' keys and values where attention reads them: token i (of T_n new ones) of sequence n goes to
// position lengths[n] - T_n + i of its slot or pages, rounded to the cache's dtype. The rest of the cache stays as it
// is. Nothing of an absent sequence is read or written. A block of Q8_0, 32 values x, has the scale d = f16(max|x| /
// 127), at least the smallest f16 above zero if any x is not zero and at most the largest, and the codes nearest to x /
// d, computed as x (1 / d) in f32, ties to even, at most 127 in size. So errors are at most d / 2, f32's rounding
// aside, where max|x| is between 1e-3 and 8e6. Of values that are not finite some finite ones are stored.
struct StoreKvArgs {
  static constexpr std::string_view kName = "store_kv";
  ConstTensor k;           // [T,HKV,D], packed
  ConstTensor v;           // [T,HKV,D], dtype of k
  ConstTensor cu_seqlens;  // [N+1] i32: the new tokens of each sequence
  ConstTensor lengths;     // [N] i32: tokens in the cache, the new ones included; T_n <= lengths[n] <= S
  ConstTensor slots;       // [N] i32, optional: the sequence's slot of the cache, each once, -1: absent; n without it
  ConstTensor pages;       // [N,P] i32, optional, instead of slots, as of attention; each page written to once
  Tensor k_cache;          // [slots,S,HKV,D], any float dtype, or Q8_0 at an even address if D is a multiple of 32
  Tensor v_cache;          // [slots,S,HKV,D], dtype of k_cache
};

// Sorts the rows of a projection that interleaves by key head (Qwen3-Next): of each key head in turn q, k, then v and z
// of its R value heads.
struct SplitQkvzArgs {
  static constexpr std::string_view kName = "split_qkvz";
  ConstTensor x;  // [T,HK,2*K+2*RV], RV = R value heads of V
  Tensor q;       // [T,HK,K], dtype of x as all of them
  Tensor k;       // [T,HK,K]
  Tensor v;       // [T,HK,RV]
  Tensor z;       // [T,HK,RV]
};

// What a matmul may round. The two classes mean the same on every backend; explain() names each kernel's arithmetic.
// An NMSE is the squared error over the squared result, of products whose sums do not cancel.
enum class MatmulPrecision : std::uint8_t {
  // f32 activations, weights as dequantize gives them (or with one rounding less), f32 sums.
  kExact,
  // For speed. CPU: with block-format weights, activations are rounded to 8 bits, a scale for each 32, NMSE at most
  // 2e-4; with AMX, activations and weights are rounded to bf16, NMSE at most 1e-5. CUDA: activations and weights are
  // rounded to 16 bits, or activations to 15 bits relative to the largest of 32, NMSE at most 1e-5.
  // Metal: as kExact.
  kFast,
};

// y = x W^T (+ bias).
struct LinearArgs {
  static constexpr std::string_view kName = "linear";
  ConstTensor x;       // [T,K]
  ConstTensor weight;  // [N,K], any dtype but I32; rows contiguous
  ConstTensor bias;    // [N] f32, optional
  Tensor y;            // [T,N], dtype of x or f32
  MatmulPrecision precision = MatmulPrecision::kExact;
};

// Products of the same rows with up to four matrices: y_i = x weight_i^T, with the bits of `linear` for each. One call
// converts x once where the CPU converts it, and the products need not wait for each other.
struct ProjectionsArgs {
  static constexpr std::string_view kName = "projections";
  ConstTensor x;         // [T,K]
  ConstTensor weight_0;  // [N_0,K], as of linear; each may have a dtype of its own
  ConstTensor weight_1;  // [N_1,K], optional with y_1
  ConstTensor weight_2;  // [N_2,K], optional with y_2
  ConstTensor weight_3;  // [N_3,K], optional with y_3
  Tensor y_0;            // [T,N_0], dtype of x or f32
  Tensor y_1;            // [T,N_1], likewise
  Tensor y_2;            // [T,N_2], likewise
  Tensor y_3;            // [T,N_3], likewise
  MatmulPrecision precision = MatmulPrecision::kExact;
};

// y_t = table[ids_t], unpacked. The CPU refuses ids that are not in the table; on a GPU their rows of y are zero.
struct EmbeddingArgs {
  static constexpr std::string_view kName = "embedding";
  ConstTensor ids;    // [T] i32, each in 0..vocabulary-1
  ConstTensor table;  // [vocabulary,D], any dtype but I32
  Tensor y;           // [T,D], f32, f16 or bf16
};

// y = a + b.
struct AddArgs {
  static constexpr std::string_view kName = "add";
  ConstTensor a;  // [T,D]
  ConstTensor b;  // [T,D], dtype of a
  Tensor y;       // [T,D], dtype of a or f32; may be a or b itself
};

// y = silu(gate) * up.
struct SwigluArgs {
  static constexpr std::string_view kName = "swiglu";
  ConstTensor gate;  // [T,I]
  ConstTensor up;    // [T,I], dtype of gate
  Tensor y;          // [T,I], dtype of gate or f32; may be gate or up itself
};

void causal_conv1d(const CausalConv1dArgs& a, Workspace w, const Stream& s);
void causal_conv1d_update(const CausalConv1dUpdateArgs& a, Workspace w, const Stream& s);
void rms_norm(const RmsNormArgs& a, Workspace w, const Stream& s);
void gated_rms_norm(const GatedRmsNormArgs& a, Workspace w, const Stream& s);
void rope(const RopeArgs& a, Workspace w, const Stream& s);
void attention(const AttentionArgs& a, Workspace w, const Stream& s);
void store_kv(const StoreKvArgs& a, Workspace w, const Stream& s);
void split_qkvz(const SplitQkvzArgs& a, Workspace w, const Stream& s);
void linear(const LinearArgs& a, Workspace w, const Stream& s);
void projections(const ProjectionsArgs& a, Workspace w, const Stream& s);
void embedding(const EmbeddingArgs& a, Workspace w, const Stream& s);
void add(const AddArgs& a, Workspace w, const Stream& s);
void swiglu(const SwigluArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
