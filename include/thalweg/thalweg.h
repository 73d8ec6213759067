#pragma once

// The C ABI of Thalweg, for C and for every language that can call C. It is the C++ interface again: the same
// operations under the same names with the same contracts, which stand in the C++ headers.
//
// - A function that can fail returns a thalweg_status; thalweg_error_message() then says what was wrong. No exception
//   leaves the library. A call that failed has written nothing.
// - Memory is the caller's: tensors are views, scratch memory is passed in. Handles (thalweg_memory, thalweg_model,
//   thalweg_sequence) are opaque; what a _create, _load or _start made, its _free takes away; freeing NULL is allowed.
// - An operation is a struct of arguments and four functions. Fields that hold an enum are int32_t, and a value that
//   the enum lacks is refused.
// - A struct that begins with struct_size is prepared by its _init, which sets the defaults, tensors to absent, and
//   struct_size to the size that the caller was compiled with. Later versions of the library append fields; callers
//   that know nothing of them get their defaults. The other structs never change.
// - Any thread may call operations, also several at once; see thalweg_stream for the threads they use. Calls on
//   different handles may run at the same time; a model and its sequences are used by one thread at a time, and engines
//   by any. Error messages are the calling thread's own.
//
// A program runs with any library of its major version (libthalweg.so.0) whose thalweg_abi_version() is not less than
// the THALWEG_ABI_VERSION it was compiled with.

// NOLINTBEGIN: this is C
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "thalweg/api.h"
#include "thalweg/version.h"

#ifdef __cplusplus
extern "C" {
#endif
THALWEG_API_BEGIN

#define THALWEG_ABI_VERSION 11

// THALWEG_ABI_VERSION of the library itself. It grows with every field and function that is added.
int32_t thalweg_abi_version(void);
// THALWEG_VERSION_STRING of the library itself: "0.2.0".
const char* thalweg_version(void);

// Declares thalweg_<name>_init(value). It is compiled into the caller and passes on the caller's size of the struct,
// which is how the library knows which fields there are. Callers in other languages call the _sized function.
#define THALWEG_DECLARE_INIT(name)                                      \
  void thalweg_##name##_init_sized(thalweg_##name* value, size_t size); \
  static inline void thalweg_##name##_init(thalweg_##name* value) {     \
    thalweg_##name##_init_sized(value, sizeof(thalweg_##name));         \
  }

// ---------------------------------------------------------------------------------------------------------------------
// Errors

typedef enum thalweg_status {
  THALWEG_OK = 0,
  THALWEG_INVALID = 1,        // what was asked breaks a contract, or a file is unusable: the message names it
  THALWEG_OUT_OF_MEMORY = 2,  // of the host
  THALWEG_INTERNAL = 3,       // a defect of the library
  THALWEG_REFUSED = 4,        // by an engine that is full or being stopped: try again later
} thalweg_status;

// Of this thread's last call that failed, valid until its next one: "linear: weight: expected ..., got ...".
const char* thalweg_error_message(void);
// The parts of the message: the operation and the argument it names; empty if it names none.
const char* thalweg_error_operation(void);
const char* thalweg_error_argument(void);

// ---------------------------------------------------------------------------------------------------------------------
// Devices and streams: device.h

typedef enum thalweg_device_type { THALWEG_CPU = 0, THALWEG_CUDA = 1, THALWEG_METAL = 2 } thalweg_device_type;

typedef struct thalweg_device {
  int32_t type;  // thalweg_device_type
  int32_t index;
} thalweg_device;

// Whether a row's bits may depend on the number of rows of a call: RowHint in device.h.
typedef enum thalweg_row_hint { THALWEG_ROWS_BY_COUNT, THALWEG_ROWS_FEW, THALWEG_ROWS_MANY } thalweg_row_hint;

// Threads of the caller's own for the CPU: `run` calls work(context, i) exactly once for each i in 0..workers-1, on
// whatever threads, and returns when all calls have returned. Several threads may call it at once if several of them
// run operations.
typedef struct thalweg_thread_pool {
  void (*run)(void* user, int32_t workers, void (*work)(void* context, int32_t worker), void* context);
  void* user;
} thalweg_thread_pool;

// On the CPU a call returns when the work is done. On a GPU `native` is the caller's queue (cudaStream_t,
// id<MTLCommandQueue>) and a call only enqueues. Where a pointer to a stream is NULL, it is the CPU with all threads of
// the library's pool, which calls that run at once share.
typedef struct thalweg_stream {
  size_t struct_size;
  thalweg_device device;
  int32_t threads;  // of the CPU; 0: every hardware thread
  int32_t rows;     // thalweg_row_hint
  void* native;
  const thalweg_thread_pool* pool;  // NULL: the library's
} thalweg_stream;

THALWEG_DECLARE_INIT(stream)

// Whether this build and machine can run operations there, and if not, why not: "" or text that stays valid until this
// thread's next call.
thalweg_status thalweg_device_type_available(int32_t type, bool* available, const char** reason);

// Waits until the stream has done all it was given.
thalweg_status thalweg_synchronize(const thalweg_stream* stream);

// Pins one of the CPU's instruction sets, or one kernel of an operation; "" undoes it: see backend.h.
thalweg_status thalweg_select_instruction_set(const char* name);
thalweg_status thalweg_select_kernel(const char* operation, const char* kernel);

// ---------------------------------------------------------------------------------------------------------------------
// Tensors: dtype.h, tensor.h

typedef enum thalweg_dtype {
  THALWEG_F32 = 0,
  THALWEG_F16 = 1,
  THALWEG_BF16 = 2,
  THALWEG_I32 = 3,
  THALWEG_Q4_0 = 4,
  THALWEG_Q4_1 = 5,
  THALWEG_Q5_0 = 6,
  THALWEG_Q5_1 = 7,
  THALWEG_Q8_0 = 8,
  THALWEG_Q2_K = 9,
  THALWEG_Q3_K = 10,
  THALWEG_Q4_K = 11,
  THALWEG_Q5_K = 12,
  THALWEG_Q6_K = 13,
  THALWEG_IQ4_NL = 14,
  THALWEG_IQ4_XS = 15,
  THALWEG_MXFP4 = 16,
} thalweg_dtype;

#define THALWEG_MAX_RANK 5

// A view of memory of the caller's. Strides count elements; the innermost is 1. Rank 0: absent. Its layout never
// changes.
typedef struct thalweg_tensor {
  void* data;
  int32_t dtype;  // thalweg_dtype
  int32_t rank;
  thalweg_device device;
  int64_t shape[THALWEG_MAX_RANK];
  int64_t strides[THALWEG_MAX_RANK];
  int32_t alignment;  // of the address, in bytes, where planning is to know it without memory; 0: not stated
  int32_t reserved;   // 0
} thalweg_tensor;

// A contiguous view, absent for rank 0. Calls refuse a view of any other rank that is not 1..THALWEG_MAX_RANK.
thalweg_tensor thalweg_tensor_of(void* data, int32_t dtype, thalweg_device device, int32_t rank, const int64_t* shape);

// Bytes of `count` consecutive elements, a multiple of the dtype's block size; -1 if the dtype does not exist.
int64_t thalweg_bytes_of(int32_t dtype, int64_t count);
// "Q4_K"; NULL if the dtype does not exist.
const char* thalweg_dtype_name(int32_t dtype);
// Whether thalweg_quantize packs it.
bool thalweg_can_pack(int32_t dtype);

// Memory of a device, aligned to 256 bytes, and copies that have arrived when the function returns.
typedef struct thalweg_memory thalweg_memory;
thalweg_status thalweg_memory_create(thalweg_device device, size_t bytes, thalweg_memory** memory);
void* thalweg_memory_data(const thalweg_memory* memory);
size_t thalweg_memory_bytes(const thalweg_memory* memory);
void thalweg_memory_free(thalweg_memory* memory);
thalweg_status thalweg_copy_to_device(const thalweg_stream* stream, void* device_memory, const void* host_memory,
                                      size_t bytes);
thalweg_status thalweg_copy_to_host(const thalweg_stream* stream, void* host_memory, const void* device_memory,
                                    size_t bytes);

// ---------------------------------------------------------------------------------------------------------------------
// Operations

typedef enum thalweg_head_map {
  THALWEG_HEAD_MAP_UNSET = 0,    // refused: there is no default
  THALWEG_HEAD_MAP_GROUPED = 1,  // value head h reads key head h / (HV/HK)
  THALWEG_HEAD_MAP_TILED = 2,    // value head h reads key head h % HK
} thalweg_head_map;
typedef enum thalweg_rounding { THALWEG_ROUNDING_F32 = 0, THALWEG_ROUNDING_SEED = 1 } thalweg_rounding;
typedef enum thalweg_state_layout { THALWEG_STATE_VK = 0, THALWEG_STATE_KV = 1 } thalweg_state_layout;
typedef enum thalweg_qk_norm {
  THALWEG_QK_NORM_NONE = 0,
  THALWEG_QK_NORM_L2 = 1,
  THALWEG_QK_NORM_RMS = 2,
} thalweg_qk_norm;
typedef enum thalweg_activation { THALWEG_ACTIVATION_NONE = 0, THALWEG_ACTIVATION_SILU = 1 } thalweg_activation;
typedef enum thalweg_router_score { THALWEG_ROUTER_SOFTMAX = 0, THALWEG_ROUTER_SIGMOID = 1 } thalweg_router_score;
typedef enum thalweg_matmul_precision { THALWEG_MATMUL_EXACT = 0, THALWEG_MATMUL_FAST = 1 } thalweg_matmul_precision;

// The gated delta rule and the stages of its chunk form: contracts in gated_delta_rule.h.

typedef struct thalweg_chunk_local_cumsum_args {
  size_t struct_size;
  thalweg_tensor g;           // [B,T,HV] f32
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional
  thalweg_tensor g_cumsum;    // written: [B,T,HV] f32; may be g itself
  int32_t chunk_size;
} thalweg_chunk_local_cumsum_args;

typedef struct thalweg_l2norm_args {
  size_t struct_size;
  thalweg_tensor x;  // [B,T,H,K], f32, f16 or bf16; K >= 1
  thalweg_tensor y;  // written: like x; may be x itself
  float eps;
} thalweg_l2norm_args;

typedef struct thalweg_chunk_scaled_dot_kkt_args {
  size_t struct_size;
  thalweg_tensor k;           // [B,T,HK,K]
  thalweg_tensor beta;        // [B,T,HV] f32
  thalweg_tensor g_cumsum;    // [B,T,HV] f32, summed within the chunk
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional
  thalweg_tensor a;           // written: [B,T,HV,C] f32
  int32_t chunk_size;
  int32_t head_map;  // thalweg_head_map
  int32_t rounding;  // thalweg_rounding
} thalweg_chunk_scaled_dot_kkt_args;

typedef struct thalweg_solve_tril_args {
  size_t struct_size;
  thalweg_tensor a;           // [B,T,HV,C] f32
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional
  thalweg_tensor a_inv;       // written: [B,T,HV,C] f32 or bf16; may be a itself
  int32_t chunk_size;
} thalweg_solve_tril_args;

typedef struct thalweg_recompute_w_u_args {
  size_t struct_size;
  thalweg_tensor k;           // [B,T,HK,K]
  thalweg_tensor v;           // [B,T,HV,V], dtype of k
  thalweg_tensor beta;        // [B,T,HV] f32
  thalweg_tensor g_cumsum;    // [B,T,HV] f32
  thalweg_tensor a_inv;       // [B,T,HV,C] f32 or bf16
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional
  thalweg_tensor w;           // written: [B,T,HV,K], dtype of k
  thalweg_tensor u;           // written: [B,T,HV,V], dtype of k
  int32_t chunk_size;
  int32_t head_map;  // thalweg_head_map
  int32_t rounding;  // thalweg_rounding
} thalweg_recompute_w_u_args;

typedef struct thalweg_chunk_state_args {
  size_t struct_size;
  thalweg_tensor k;              // [B,T,HK,K]
  thalweg_tensor w;              // [B,T,HV,K], dtype of k
  thalweg_tensor u;              // [B,T,HV,V], dtype of k
  thalweg_tensor g_cumsum;       // [B,T,HV] f32
  thalweg_tensor initial_state;  // [N,HV,V,K] or a pool [slots,HV,V,K], f32 or bf16, optional (zero)
  thalweg_tensor state_indices;  // [N] i32, optional: the sequence's slot in both pools; -1: zero state, write nothing
  thalweg_tensor cu_seqlens;     // [N+1] i32, optional
  thalweg_tensor h;              // written: [B,NC,HV,V,K], dtype of k, optional: the state before each chunk
  thalweg_tensor v_new;          // written: [B,T,HV,V], dtype of k, optional
  thalweg_tensor final_state;    // written: like initial_state, optional; may be initial_state itself
  int32_t chunk_size;
  int32_t head_map;      // thalweg_head_map
  int32_t state_layout;  // thalweg_state_layout of initial_state and final_state; h is always [..,V,K]
  int32_t rounding;      // thalweg_rounding
} thalweg_chunk_state_args;

typedef struct thalweg_chunk_output_args {
  size_t struct_size;
  thalweg_tensor q;           // [B,T,HK,K]
  thalweg_tensor k;           // [B,T,HK,K], dtype of q
  thalweg_tensor v_new;       // [B,T,HV,V], dtype of q
  thalweg_tensor h;           // [B,NC,HV,V,K], dtype of q
  thalweg_tensor g_cumsum;    // [B,T,HV] f32
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional
  thalweg_tensor o;           // written: [B,T,HV,V], f32 or dtype of q
  const float* scale;         // NULL: K^-1/2
  int32_t chunk_size;
  int32_t head_map;  // thalweg_head_map
  int32_t rounding;  // thalweg_rounding
} thalweg_chunk_output_args;

typedef struct thalweg_gate_inputs {
  thalweg_tensor a;        // [B,T,HV], f32, f16 or bf16
  thalweg_tensor b;        // [B,T,HV], dtype of a
  thalweg_tensor a_log;    // [HV], f32, f16 or bf16
  thalweg_tensor dt_bias;  // [HV], f32, f16 or bf16
} thalweg_gate_inputs;

typedef struct thalweg_chunk_gated_delta_rule_args {
  size_t struct_size;
  thalweg_tensor q;     // [B,T,HK,K], f32, f16 or bf16
  thalweg_tensor k;     // [B,T,HK,K], dtype of q
  thalweg_tensor v;     // [B,T,HV,V], dtype of q
  thalweg_tensor g;     // [B,T,HV] f32
  thalweg_tensor beta;  // [B,T,HV] f32
  thalweg_gate_inputs gates;
  thalweg_tensor
      initial_state;  // [N,HV,V,K], or a pool [slots,HV,V,K] with state_indices; f32 or bf16; optional (zero)
  thalweg_tensor state_indices;  // [N] i32, optional: the sequence's slot in both pools; -1: zero state, write nothing.
                                 // Slots of one call differ from each other.
  thalweg_tensor cu_seqlens;     // [N+1] i32, optional
  thalweg_tensor o;              // written: [B,T,HV,V], f32 or dtype of q
  thalweg_tensor final_state;    // written: shape and dtype of initial_state, optional; may be initial_state itself
  int32_t head_map;              // thalweg_head_map
  int32_t state_layout;          // thalweg_state_layout
  const float* scale;            // NULL: K^-1/2
  int32_t qk_norm;               // thalweg_qk_norm
  float qk_norm_eps;
  thalweg_tensor q_norm_weight;  // [HK,K] for THALWEG_QK_NORM_RMS, f32, f16 or bf16
  thalweg_tensor k_norm_weight;  // [HK,K], dtype of q_norm_weight
  thalweg_tensor fault;          // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  thalweg_tensor checkpoints;    // written: [B,NC,HV,V,K] (or [..,K,V] by state_layout), dtype of the state or f32,
                                 // optional: the state before each piece of checkpoint_tokens tokens, pieces numbered
                                 // like the chunks of chunk_state. Written for sequences with state index -1 too.
  int32_t checkpoint_tokens;     // a multiple of 64
  int64_t bf16_operands;         // not 0: f32 q, k and v may be rounded to bf16 where bf16 products are faster; errors
                                 // are those of bf16 inputs. 64 bits, after the padding of those who do not know it
} thalweg_chunk_gated_delta_rule_args;

typedef struct thalweg_recurrent_gated_delta_rule_args {
  size_t struct_size;
  thalweg_tensor q;     // [B,T,HK,K], f32, f16 or bf16
  thalweg_tensor k;     // [B,T,HK,K], dtype of q
  thalweg_tensor v;     // [B,T,HV,V], dtype of q
  thalweg_tensor g;     // [B,T,HV] f32
  thalweg_tensor beta;  // [B,T,HV] f32
  thalweg_gate_inputs gates;
  thalweg_tensor
      initial_state;  // [N,HV,V,K], or a pool [slots,HV,V,K] with state_indices; f32 or bf16; optional (zero)
  thalweg_tensor state_indices;  // [N] i32, optional: the sequence's slot in both pools; -1: zero state, write nothing.
                                 // Slots of one call differ from each other.
  thalweg_tensor cu_seqlens;     // [N+1] i32, optional
  thalweg_tensor o;              // written: [B,T,HV,V], f32 or dtype of q
  thalweg_tensor final_state;    // written: shape and dtype of initial_state, optional; may be initial_state itself
  int32_t head_map;              // thalweg_head_map
  int32_t state_layout;          // thalweg_state_layout
  const float* scale;            // NULL: K^-1/2
  int32_t qk_norm;               // thalweg_qk_norm
  float qk_norm_eps;
  thalweg_tensor q_norm_weight;  // [HK,K] for THALWEG_QK_NORM_RMS, f32, f16 or bf16
  thalweg_tensor k_norm_weight;  // [HK,K], dtype of q_norm_weight
  thalweg_tensor fault;          // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  thalweg_tensor snapshots;      // written: [B,T,HV,V,K] (or [..,K,V] by state_layout), dtype of the state or f32,
                                 // optional: the state after each token. Written for sequences with state index -1 too.
} thalweg_recurrent_gated_delta_rule_args;

typedef struct thalweg_gated_delta_prep_step_args {
  size_t struct_size;
  thalweg_tensor x;  // [B,T,2*HK*K + HV*V], q | k | v; f32, f16 or bf16. The convolution's output, or its input if
                     // conv_weight is given
  thalweg_tensor conv_weight;  // [2*HK*K + HV*V, W], f32, f16 or bf16, optional, W in 2..8; newest token last
  thalweg_tensor conv_state;   // written: [B or slots, 2*HK*K + HV*V, W-1], f32, f16 or bf16: the last inputs, oldest
                               // first; updated
  thalweg_gate_inputs gates;
  thalweg_tensor q_norm_weight;  // [HK,K] for THALWEG_QK_NORM_RMS, f32, f16 or bf16
  thalweg_tensor k_norm_weight;  // [HK,K], dtype of q_norm_weight
  thalweg_tensor state_in;       // [B,HV,V,K] or a pool, f32 or bf16
  thalweg_tensor state_out;      // written: like state_in; may be state_in itself
  thalweg_tensor
      state_indices;         // [B] i32, optional: slot in state_in, state_out and conv_state; -1: zero, write nothing
  thalweg_tensor snapshots;  // written: [B,T,HV,V,K], dtype of the state or f32, optional: the state after each token,
                             // for sequences with state index -1 too
  thalweg_tensor z;          // [B,T,HV,V], dtype of x, optional: gate of the RMS norm after the recurrence
  thalweg_tensor norm_weight;  // [V], f32, f16 or bf16, with z
  thalweg_tensor y;            // written: [B,T,HV,V], f32 or dtype of x
  thalweg_tensor fault;        // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  int32_t head_map;            // thalweg_head_map
  int32_t state_layout;        // thalweg_state_layout
  const float* scale;          // of q, after its norm; NULL: K^-1/2. 1 where q_norm_weight includes it
  int32_t qk_norm;             // thalweg_qk_norm
  float qk_norm_eps;
  float norm_eps;
  thalweg_tensor cu_seqlens;  // [N+1] i32, optional, with B = 1: the states are those of N packed sequences
  thalweg_tensor
      replay_x;  // written: [N or slots,R,2*HK*K + HV*V], dtype of x, optional, in the rows of the states: tokens
                 // before those of x, without outputs; with drafts, these replace a sequence's first rows
  thalweg_tensor replay_a;       // written: [N or slots,R,HV], dtype of gates.a: their raw gates
  thalweg_tensor replay_b;       // written: [N or slots,R,HV], dtype of gates.a
  thalweg_tensor replay_counts;  // [N] i32: how many of a sequence's R are replayed, the first ones; 0..R
  bool drafts;                   // tokens after a sequence's first, at most R with replay_x, leave no trace in
                                 // state_out and conv_state
} thalweg_gated_delta_prep_step_args;

// Dense operations: contracts in nn.h.

typedef struct thalweg_causal_conv1d_args {
  size_t struct_size;
  thalweg_tensor x;       // [B,T,C]
  thalweg_tensor weight;  // [C,W], any float dtype, W in 2..8; the newest token's tap last
  thalweg_tensor bias;    // [C], dtype of weight, optional
  thalweg_tensor
      initial_state;  // [N,C,W-1] or a pool, any float dtype, optional (zero): the inputs before, oldest first
  thalweg_tensor
      final_state;  // written: like initial_state, optional; may be initial_state itself: the last W-1 inputs
  thalweg_tensor state_indices;  // [N] i32, optional; -1: zero state, write nothing
  thalweg_tensor cu_seqlens;     // [N+1] i32, optional, B = 1
  thalweg_tensor y;              // written: [B,T,C], dtype of x; not x itself
  int32_t activation;            // thalweg_activation
} thalweg_causal_conv1d_args;

typedef struct thalweg_causal_conv1d_update_args {
  size_t struct_size;
  thalweg_tensor x;              // [B,T,C]
  thalweg_tensor weight;         // [C,W]
  thalweg_tensor bias;           // [C], optional
  thalweg_tensor conv_state;     // written: [B,C,W-1] or a pool [slots,C,W-1], any float dtype
  thalweg_tensor state_indices;  // [B] i32, optional; -1: zero state, write nothing
  thalweg_tensor y;              // written: [B,T,C], dtype of x; may be x itself
  int32_t activation;            // thalweg_activation
} thalweg_causal_conv1d_update_args;

typedef struct thalweg_rms_norm_args {
  size_t struct_size;
  thalweg_tensor x;       // [T,D] or [T,H,D]
  thalweg_tensor delta;   // shape of x, any float dtype, optional
  thalweg_tensor weight;  // [D], any float dtype
  thalweg_tensor sum;     // written: like x, optional, only with delta: x + delta; may be x itself
  thalweg_tensor y;       // written: shape of x, any float dtype; may be x or delta itself
  float eps;
  bool weight_plus_one;
} thalweg_rms_norm_args;

typedef struct thalweg_gated_rms_norm_args {
  size_t struct_size;
  thalweg_tensor x;       // [T,H,D]
  thalweg_tensor z;       // [T,H,D], dtype of x
  thalweg_tensor weight;  // [D], any float dtype
  thalweg_tensor y;       // written: [T,H,D], dtype of x or f32; may be x or z itself
  float eps;
} thalweg_gated_rms_norm_args;

typedef struct thalweg_rope_args {
  size_t struct_size;
  thalweg_tensor x;            // [T,H,D]
  thalweg_tensor positions;    // [T] i32, 0 or more
  thalweg_tensor frequencies;  // [rotary_dim/2] f32, finite, optional: instead of theta^(-2i/rotary_dim)
  thalweg_tensor norm_weight;  // [D], any float dtype, optional: heads are normalized first
  thalweg_tensor y;            // written: like x; may be x itself
  int32_t rotary_dim;          // even, 2..D
  float theta;                 // not read with frequencies
  float scale;                 // of cosines and sines, positive
  float norm_eps;
  bool norm_weight_plus_one;
} thalweg_rope_args;

typedef struct thalweg_attention_args {
  size_t struct_size;
  thalweg_tensor q;           // [T,HQ,D], packed
  thalweg_tensor k_cache;     // [slots,S,HKV,D], any float dtype
  thalweg_tensor v_cache;     // [slots,S,HKV,D], dtype of k_cache
  thalweg_tensor cu_seqlens;  // [N+1] i32: the new tokens of each sequence
  thalweg_tensor lengths;     // [N] i32: tokens in the cache, the new ones included; T_n <= lengths[n] <= S
  thalweg_tensor slots;       // [N] i32, optional: the sequence's place in the cache, -1: absent; n without it
  thalweg_tensor pages;       // [N,P] i32, optional, instead of slots: the caches are [pages,S,HKV,D] (see nn.h)
  thalweg_tensor gate;        // [T,HQ,D], dtype of q, optional: the output is multiplied by sigmoid(gate)
  thalweg_tensor o;           // written: [T,HQ,D], dtype of q or f32
  const float* scale;         // NULL: D^-1/2
  bool bf16_operands;         // q, keys and values of any dtype may be rounded to bf16 where bf16 products are faster
} thalweg_attention_args;

typedef struct thalweg_store_kv_args {
  size_t struct_size;
  thalweg_tensor k;           // [T,HKV,D], packed
  thalweg_tensor v;           // [T,HKV,D], dtype of k
  thalweg_tensor cu_seqlens;  // [N+1] i32: the new tokens of each sequence
  thalweg_tensor lengths;     // [N] i32: tokens in the cache, the new ones included; T_n <= lengths[n] <= S
  thalweg_tensor slots;       // [N] i32, optional: the sequence's place in the cache, each once, -1: absent
  thalweg_tensor pages;       // [N,P] i32, optional, instead of slots; each page written to once
  thalweg_tensor k_cache;     // written: [slots,S,HKV,D], any float dtype
  thalweg_tensor v_cache;     // written: [slots,S,HKV,D], dtype of k_cache
} thalweg_store_kv_args;

typedef struct thalweg_split_qkvz_args {
  size_t struct_size;
  thalweg_tensor x;  // [T,HK,2*K+2*RV], RV = R value heads of V
  thalweg_tensor q;  // written: [T,HK,K], dtype of x as all of them
  thalweg_tensor k;  // written: [T,HK,K]
  thalweg_tensor v;  // written: [T,HK,RV]
  thalweg_tensor z;  // written: [T,HK,RV]
} thalweg_split_qkvz_args;

typedef struct thalweg_linear_args {
  size_t struct_size;
  thalweg_tensor x;       // [T,K]
  thalweg_tensor weight;  // [N,K], any dtype but I32; rows contiguous
  thalweg_tensor bias;    // [N] f32, optional
  thalweg_tensor y;       // written: [T,N], dtype of x or f32
  int32_t precision;      // thalweg_matmul_precision
} thalweg_linear_args;

typedef struct thalweg_projections_args {
  size_t struct_size;
  thalweg_tensor x;         // [T,K]
  thalweg_tensor weight_0;  // [N_0,K], as of linear; each may have a dtype of its own
  thalweg_tensor weight_1;  // [N_1,K], optional with y_1
  thalweg_tensor weight_2;  // [N_2,K], optional with y_2
  thalweg_tensor weight_3;  // [N_3,K], optional with y_3
  thalweg_tensor y_0;       // written: [T,N_0], dtype of x or f32
  thalweg_tensor y_1;       // written: [T,N_1], likewise
  thalweg_tensor y_2;       // written: [T,N_2], likewise
  thalweg_tensor y_3;       // written: [T,N_3], likewise
  int32_t precision;        // thalweg_matmul_precision
} thalweg_projections_args;

typedef struct thalweg_embedding_args {
  size_t struct_size;
  thalweg_tensor ids;    // [T] i32, each in 0..vocabulary-1
  thalweg_tensor table;  // [vocabulary,D], any dtype but I32
  thalweg_tensor y;      // written: [T,D], f32, f16 or bf16
} thalweg_embedding_args;

typedef struct thalweg_add_args {
  size_t struct_size;
  thalweg_tensor a;  // [T,D]
  thalweg_tensor b;  // [T,D], dtype of a
  thalweg_tensor y;  // written: [T,D], dtype of a or f32; may be a or b itself
} thalweg_add_args;

typedef struct thalweg_swiglu_args {
  size_t struct_size;
  thalweg_tensor gate;  // [T,I]
  thalweg_tensor up;    // [T,I], dtype of gate
  thalweg_tensor y;     // written: [T,I], dtype of gate or f32; may be gate or up itself
} thalweg_swiglu_args;

// Mixture of experts: contracts in moe.h. An expert id of -1 is an expert that is not here: its slot is skipped.

typedef struct thalweg_route_top_k_args {
  size_t struct_size;
  thalweg_tensor router_logits;   // [T,E], f32, f16 or bf16
  thalweg_tensor bias;            // [E] f32, finite, optional: added to the scores that choose, not to the weights
  thalweg_tensor expert_ids;      // written: [T,S] i32
  thalweg_tensor expert_weights;  // written: [T,S] f32
  int32_t score;                  // thalweg_router_score
  bool renormalize;               // divide the weights by their sum, where it is above 0
} thalweg_route_top_k_args;

typedef struct thalweg_expert_rows_args {
  size_t struct_size;
  thalweg_tensor expert_ids;      // [T,S] i32
  thalweg_tensor expert_offsets;  // written: [E+1] i32; E is its size less one
  thalweg_tensor rows;   // written: [T*S] i32: as many as there are ids in 0..E-1, what follows is left as it is
  thalweg_tensor fault;  // written: [1] i32, optional: DeviceFault bits, written on GPUs only
} thalweg_expert_rows_args;

typedef struct thalweg_mul_mm_id_args {
  size_t struct_size;
  thalweg_tensor weight;      // [E,N,K], any dtype but I32; rows contiguous
  thalweg_tensor x;           // [T,K], or [T,S,K] with one row per slot; f32, f16 or bf16
  thalweg_tensor expert_ids;  // [T,S] i32
  thalweg_tensor y;           // written: [T,S,N], f32 or dtype of x
  thalweg_tensor fault;       // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  int32_t precision;          // thalweg_matmul_precision
} thalweg_mul_mm_id_args;

typedef struct thalweg_mul_mv_id_args {
  size_t struct_size;
  thalweg_tensor weight;      // [E,N,K], any dtype but I32; rows contiguous
  thalweg_tensor x;           // [T,K], or [T,S,K] with one row per slot; f32, f16 or bf16
  thalweg_tensor expert_ids;  // [T,S] i32
  thalweg_tensor y;           // written: [T,S,N], f32 or dtype of x
  thalweg_tensor fault;       // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  int32_t precision;          // thalweg_matmul_precision
} thalweg_mul_mv_id_args;

typedef struct thalweg_mul_mat_id_args {
  size_t struct_size;
  thalweg_tensor weight;      // [E,N,K], any dtype but I32; rows contiguous
  thalweg_tensor x;           // [T,K], or [T,S,K] with one row per slot; f32, f16 or bf16
  thalweg_tensor expert_ids;  // [T,S] i32
  thalweg_tensor y;           // written: [T,S,N], f32 or dtype of x
  thalweg_tensor fault;       // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  int32_t precision;          // thalweg_matmul_precision
} thalweg_mul_mat_id_args;

typedef struct thalweg_moe_ffn_args {
  size_t struct_size;
  thalweg_tensor x;            // [T,D], f32, f16 or bf16
  thalweg_tensor router;       // [E,D], any dtype but I32
  thalweg_tensor gate;         // [E,I,D], any dtype but I32
  thalweg_tensor up;           // [E,I,D], dtype of gate; gate and up may be halves of one fused tensor (strided over E)
  thalweg_tensor down;         // [E,D,I], any dtype but I32
  thalweg_tensor shared_gate;  // [J,D], optional: all four shared tensors or none
  thalweg_tensor shared_up;    // [J,D]
  thalweg_tensor shared_down;  // [D,J]
  thalweg_tensor shared_router;  // [D] f32, f16 or bf16
  thalweg_tensor y;              // written: [T,D], f32 or dtype of x
  int32_t top_k;                 // 1..E
  bool renormalize;
  int32_t precision;           // thalweg_matmul_precision
  int64_t first_expert;        // where gate, up and down are some of the router's experts: the first of them
  int32_t score;               // thalweg_router_score
  thalweg_tensor router_bias;  // [E] f32, finite, optional: as of route_top_k
} thalweg_moe_ffn_args;

// From logits to tokens: contracts in sampling.h.

typedef struct thalweg_sample_tokens_args {
  size_t struct_size;
  thalweg_tensor logits;          // [N,V] f32
  thalweg_tensor lengths;         // [N] i32: tokens of the sequence so far; optional if greedy
  thalweg_tensor history;         // [slots,C] i32, optional: the tokens so far
  thalweg_tensor slots;           // [N] i32, optional: row of history; n without it. -1: absent, token -1
  thalweg_tensor temperature;     // [N] f32, optional as all settings: their defaults are thalweg_sampling's
  thalweg_tensor top_k;           // [N] i32
  thalweg_tensor top_p;           // [N] f32
  thalweg_tensor min_p;           // [N] f32
  thalweg_tensor repeat_penalty;  // [N] f32, needs history
  thalweg_tensor repeat_last;     // [N] i32
  thalweg_tensor seed;            // [N,2] i32: the low and the high word
  thalweg_tensor tokens;          // written: [N] i32
  thalweg_tensor fault;           // written: [1] i32, optional: DeviceFault bits, written on GPUs only
  thalweg_tensor allowed;         // [N,ceil(V/32)] i32, optional: bit t % 32 of word t / 32 for each token t
} thalweg_sample_tokens_args;

typedef struct thalweg_logprobs_args {
  size_t struct_size;
  thalweg_tensor logits;        // [N,V] f32
  thalweg_tensor tokens;        // [N] i32, optional; -1: absent
  thalweg_tensor logprob;       // written: [N] f32, with tokens
  thalweg_tensor top_tokens;    // written: [N,K] i32, optional, K in 1..V
  thalweg_tensor top_logprobs;  // written: [N,K] f32, with top_tokens
} thalweg_logprobs_args;

typedef struct thalweg_advance_args {
  size_t struct_size;
  thalweg_tensor tokens;      // [N] i32
  thalweg_tensor end_tokens;  // [E] i32, optional
  thalweg_tensor ids;         // written: [N] i32, becomes tokens
  thalweg_tensor positions;   // written: [N] i32, grows by 1
  thalweg_tensor lengths;     // written: [N] i32, grows by 1
  thalweg_tensor slots;       // written: [N] i32, becomes -1 where the sequence ends
  thalweg_tensor history;     // written: [slots,C] i32, optional: tokens go to position lengths[n] of their slots
} thalweg_advance_args;

// Block formats: contracts in quant.h.

typedef struct thalweg_dequantize_args {
  size_t struct_size;
  thalweg_tensor blocks;  // [R,K] or [E,R,K], any dtype but I32; rows contiguous
  thalweg_tensor values;  // written: like blocks, f32
} thalweg_dequantize_args;

typedef struct thalweg_quantize_args {
  size_t struct_size;
  thalweg_tensor values;  // [R,K] or [E,R,K], f32, finite
  thalweg_tensor blocks;  // written: like values; rows contiguous
} thalweg_quantize_args;

// THALWEG_OPERATIONS(X) is X(name) for each operation, each a struct thalweg_<name>_args above.
// clang-format off
#define THALWEG_OPERATIONS(X)                                                                                           \
  X(chunk_local_cumsum) X(l2norm) X(chunk_scaled_dot_kkt) X(solve_tril) X(recompute_w_u) X(chunk_state) X(chunk_output) \
  X(chunk_gated_delta_rule) X(recurrent_gated_delta_rule) X(gated_delta_prep_step)                                      \
  X(causal_conv1d) X(causal_conv1d_update) X(rms_norm) X(gated_rms_norm) X(rope) X(attention) X(store_kv) X(split_qkvz) \
  X(linear) X(projections) X(embedding) X(add) X(swiglu)                                                                \
  X(route_top_k) X(expert_rows) X(mul_mm_id) X(mul_mv_id) X(mul_mat_id) X(moe_ffn)                                      \
  X(sample_tokens) X(logprobs) X(advance) X(dequantize) X(quantize)
// clang-format on

// The functions of an operation:
//   thalweg_<name>_args_init(args)                               defaults, no tensors, and the size of the struct
//   thalweg_<name>_workspace_size(args, stream, &bytes)          scratch that a run needs; data pointers may be NULL
//   thalweg_<name>_explain(args, stream, &text)                  which kernel runs and why not the others, a line each;
//                                                                valid until this thread's next call
//   thalweg_<name>(args, workspace, workspace_bytes, stream)     runs it; workspace is aligned to 64 bytes
#define THALWEG_DECLARE_OPERATION(name)                                                                           \
  THALWEG_DECLARE_INIT(name##_args)                                                                               \
  thalweg_status thalweg_##name##_workspace_size(const thalweg_##name##_args* args, const thalweg_stream* stream, \
                                                 size_t* bytes);                                                  \
  thalweg_status thalweg_##name##_explain(const thalweg_##name##_args* args, const thalweg_stream* stream,        \
                                          const char** text);                                                     \
  thalweg_status thalweg_##name(const thalweg_##name##_args* args, void* workspace, size_t workspace_bytes,       \
                                const thalweg_stream* stream);
THALWEG_OPERATIONS(THALWEG_DECLARE_OPERATION)
#undef THALWEG_DECLARE_OPERATION

#ifndef THALWEG_KERNELS_ONLY  // set for a library that was built without what follows

// ---------------------------------------------------------------------------------------------------------------------
// Models: model.h

// For kv_dtype: F32 if exact, else F16.
#define THALWEG_DEFAULT_DTYPE (-1)
// For device_type: a GPU that the model fits on, else the CPU.
#define THALWEG_DEFAULT_DEVICE (-1)

typedef struct thalweg_model thalweg_model;
typedef struct thalweg_sequence thalweg_sequence;
typedef struct thalweg_ranks thalweg_ranks;  // thalweg_ranks.h

// Drafts of the next tokens: none, from the text so far, as many as pay, or from the model's MTP layer.
typedef enum { THALWEG_DRAFT_OFF, THALWEG_DRAFT_LOOKUP, THALWEG_DRAFT_AUTO, THALWEG_DRAFT_MTP } thalweg_draft_mode;

typedef struct thalweg_model_options {
  size_t struct_size;
  int32_t threads;        // 0: every hardware thread
  int64_t context;        // most tokens of a sequence; 0: what the file says, but at most 32768
  int32_t sequences;      // most sequences alive at once
  int32_t prefill_chunk;  // tokens of a prefill that run together; 0: 512 on a CPU, 8192 on a GPU
  bool exact;             // no 8-bit activations
  int32_t kv_dtype;       // of keys and values: THALWEG_F16, _BF16, _F32, _Q8_0 or THALWEG_DEFAULT_DTYPE
  int32_t state_dtype;    // of the recurrent states: THALWEG_F32 or THALWEG_BF16
  int32_t device_type;    // thalweg_device_type, or THALWEG_DEFAULT_DEVICE
  int32_t device_index;
  bool prefetch;                              // read the whole file at load
  void (*progress)(void* user, double done);  // NULL, or receives the share that is done, up to 1
  void* user;                                 // for progress
  const thalweg_thread_pool* pool;            // the caller's threads, copied; NULL: the library's
  int32_t draft;                              // thalweg_draft_mode
  int32_t draft_max;                          // most drafts of a sequence in one run; 1 to 64
  thalweg_ranks* ranks;                       // processes that run the model together; NULL: this one alone
  int32_t rank_split;                         // thalweg_rank_split: what they share
  // 1: on a GPU too a sequence's bits do not depend on the sequences beside it, slower; else 0. Of 64 bits, since those
  // behind rank_split were padding of the struct that programs have.
  int64_t batch_invariant;
} thalweg_model_options;

typedef struct thalweg_sampling {
  size_t struct_size;
  float temperature;     // 0: the likeliest token
  int32_t top_k;         // 0: all
  float top_p;           // 1: all
  float min_p;           // 0: all
  float repeat_penalty;  // 1: off
  int32_t repeat_last;
  uint64_t seed;
} thalweg_sampling;

// Its layout never changes.
typedef struct thalweg_chat_message {
  const char* role;  // "system", "user" or "assistant"
  const char* content;
} thalweg_chat_message;

typedef enum thalweg_stop_reason {
  THALWEG_STOP_END_TOKEN = 0,
  THALWEG_STOP_LENGTH = 1,
  THALWEG_STOP_CONTEXT = 2,
  THALWEG_STOP_CALLER = 3,
} thalweg_stop_reason;

typedef struct thalweg_generated {
  size_t struct_size;
  int64_t tokens;  // without the end token
  int32_t reason;  // thalweg_stop_reason
  int64_t prompt_tokens;
  double prefill_seconds;
  int64_t steps;
  double decode_seconds;
} thalweg_generated;

THALWEG_DECLARE_INIT(model_options)
THALWEG_DECLARE_INIT(sampling)
THALWEG_DECLARE_INIT(generated)

// A .gguf file or a Hugging Face directory. `options` may be NULL. Sequences keep what they need of a model: the order
// in which the two are freed does not matter.
thalweg_status thalweg_model_load(const char* path, const thalweg_model_options* options, thalweg_model** model);
void thalweg_model_free(thalweg_model* model);
int64_t thalweg_model_vocabulary(const thalweg_model* model);
int64_t thalweg_model_context(const thalweg_model* model);
const char* thalweg_model_architecture(const thalweg_model* model);
bool thalweg_model_is_end_token(const thalweg_model* model, int32_t token);

// These write at most `capacity` elements and set *count to the number there are: call again if it is larger. Text is
// UTF-8, bytes of a token may be part of a character, nothing is ended with a zero.
thalweg_status thalweg_tokenize(const thalweg_model* model, const char* text, size_t length, bool parse_special,
                                int32_t* tokens, size_t capacity, size_t* count);
thalweg_status thalweg_detokenize(const thalweg_model* model, const int32_t* tokens, size_t token_count, char* text,
                                  size_t capacity, size_t* count);
// `think`: 1 and 0 as asked, -1 for what the family does by itself.
thalweg_status thalweg_chat_prompt(const thalweg_model* model, const thalweg_chat_message* messages,
                                   size_t message_count, int32_t think, int32_t* tokens, size_t capacity,
                                   size_t* count);

thalweg_status thalweg_sequence_start(thalweg_model* model, thalweg_sequence** sequence);
void thalweg_sequence_free(thalweg_sequence* sequence);
// Views that are valid until the sequence changes. Logits are of the next token; none before the first token.
const int32_t* thalweg_sequence_tokens(const thalweg_sequence* sequence, size_t* count);
const float* thalweg_sequence_logits(const thalweg_sequence* sequence, size_t* count);
thalweg_status thalweg_sequence_clear(thalweg_sequence* sequence);
// The whole state, in a file. A file that is damaged or of another model is refused; the sequence stays as it was.
thalweg_status thalweg_sequence_save(const thalweg_sequence* sequence, const char* path);
thalweg_status thalweg_sequence_restore(thalweg_sequence* sequence, const char* path);

// New tokens of a sequence; one token each for `sequence_count` sequences; the token that `sampling` (NULL: the
// likeliest) chooses next.
thalweg_status thalweg_prefill(thalweg_model* model, thalweg_sequence* sequence, const int32_t* tokens, size_t count);
thalweg_status thalweg_step(thalweg_model* model, thalweg_sequence* const* sequences, const int32_t* tokens,
                            size_t sequence_count);
thalweg_status thalweg_sample(const thalweg_model* model, const thalweg_sequence* sequence,
                              const thalweg_sampling* sampling, int32_t* token);

// Prefills the prompt, then up to max_tokens tokens. `callback` (may be NULL) receives whole characters of UTF-8 as
// they come and returns false to stop. `sampling` and `result` may be NULL.
typedef bool (*thalweg_text_callback)(void* user, const char* bytes, size_t count);
thalweg_status thalweg_generate(thalweg_model* model, thalweg_sequence* sequence, const int32_t* prompt,
                                size_t prompt_count, const thalweg_sampling* sampling, int64_t max_tokens,
                                thalweg_text_callback callback, void* user, thalweg_generated* result);

// ---------------------------------------------------------------------------------------------------------------------
// Engines: engine.h

typedef struct thalweg_engine thalweg_engine;
typedef struct thalweg_answer thalweg_answer;

typedef struct thalweg_engine_options {
  size_t struct_size;
  int32_t queue;             // most requests that wait
  uint64_t cache_bytes;      // of host memory for the prefix cache
  const char* cache_dir;     // a folder that keeps the cache beyond the process; NULL: none
  uint64_t cache_dir_bytes;  // most bytes of its files
  double prompt_share;       // of the time, for prompts while others generate
  bool cache_answers;        // keeps answers too: the next turn goes on from there, by other roundings than a cold run
  int64_t cache_device_bytes;  // of the device's memory for the prefix cache; -1: a quarter of what is free
} thalweg_engine_options;

typedef struct thalweg_request {
  size_t struct_size;
  const int32_t* prompt;
  size_t prompt_count;
  const int64_t* boundaries;  // positions up to which later prompts are likely to be equal: ends of messages
  size_t boundary_count;
  const thalweg_sampling* sampling;  // NULL: the likeliest token
  int64_t max_tokens;                // -1: until the context is full
  const char* const* stop;           // texts that end the answer, ended with a zero
  size_t stop_count;
  int32_t logprobs;  // also of this many of the likeliest tokens at each position; -1: none at all
  bool ignore_end;   // end tokens are tokens like others
} thalweg_request;

typedef enum thalweg_finish_reason {
  THALWEG_FINISH_NONE = -1,  // more is to come
  THALWEG_FINISH_END_TOKEN = 0,
  THALWEG_FINISH_STOP = 1,
  THALWEG_FINISH_LENGTH = 2,
  THALWEG_FINISH_CANCELLED = 3,
  THALWEG_FINISH_ERROR = 4,  // `error` says which
} thalweg_finish_reason;

// What came since the last output. Pointers are valid until the answer's next call.
typedef struct thalweg_output {
  size_t struct_size;
  const char* text;  // whole characters of UTF-8, not ended with a zero
  size_t text_size;
  const int32_t* tokens;
  size_t token_count;
  const double* logprobs;            // [token_count], or NULL if they were not asked for
  const int32_t* likeliest_tokens;   // [token_count, request.logprobs], in falling order
  const double* likeliest_logprobs;  // [token_count, request.logprobs]
  int32_t finish;                    // thalweg_finish_reason
  const char* error;                 // ended with a zero
  int64_t prompt_tokens;             // of the request so far, from here on
  int64_t cached_tokens;             // of them, not computed
  int64_t generated_tokens;          // without the end token
  double queue_seconds, prompt_seconds, generation_seconds;
} thalweg_output;

typedef struct thalweg_engine_counts {
  size_t struct_size;
  int64_t waiting, running;  // requests, now
  uint64_t requests, refused, finished, cancelled, failed;
  uint64_t prompt_tokens, prompt_tokens_cached, prompt_tokens_computed, generated_tokens;
  uint64_t cache_bytes, cache_checkpoints, cache_dir_bytes, cache_dir_checkpoints;
  uint64_t cache_device_bytes;
} thalweg_engine_counts;

THALWEG_DECLARE_INIT(engine_options)
THALWEG_DECLARE_INIT(request)
THALWEG_DECLARE_INIT(output)
THALWEG_DECLARE_INIT(engine_counts)

// Takes the model, of which no sequence may exist. Its handle then serves the functions of text and properties, while
// the engine lives; free both, in any order. `options` may be NULL. All functions of engines may be called by any
// thread.
thalweg_status thalweg_engine_create(thalweg_model* model, const thalweg_engine_options* options,
                                     thalweg_engine** engine);
// Cancels what runs. Answers must be freed before.
void thalweg_engine_free(thalweg_engine* engine);
// Refuses further requests and waits for the others, which are cancelled after so many seconds; *finished says whether
// all ended by themselves.
thalweg_status thalweg_engine_drain(thalweg_engine* engine, double seconds, bool* finished);
thalweg_status thalweg_engine_count(const thalweg_engine* engine, thalweg_engine_counts* counts);

// Copies the request. THALWEG_REFUSED if it cannot run now.
thalweg_status thalweg_submit(thalweg_engine* engine, const thalweg_request* request, thalweg_answer** answer);
// Waits for an output; after the last one *more is false and the output is not written.
thalweg_status thalweg_answer_next(thalweg_answer* answer, thalweg_output* output, bool* more);
thalweg_status thalweg_answer_cancel(thalweg_answer* answer);
// Cancels the request if it still runs.
void thalweg_answer_free(thalweg_answer* answer);

#endif  // THALWEG_KERNELS_ONLY

THALWEG_API_END
#ifdef __cplusplus
}
#endif
// NOLINTEND
