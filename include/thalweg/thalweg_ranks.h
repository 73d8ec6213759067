#pragma once

// The C ABI of ranks.h, beside thalweg.h: several processes that run one model together, each a rank.
//
//   thalweg_rank_options of_launcher;                    // mpirun, torchrun or srun
//   thalweg_rank_options_init(&of_launcher);
//   thalweg_ranks_from_environment(&of_launcher);
//   thalweg_ranks_connect(&of_launcher, &options.ranks); // options of thalweg_model_load, the same on every rank
//   thalweg_model_load("model.gguf", &options, &model);
//   if (of_launcher.rank > 0) thalweg_model_follow(model);  // rank 0 leads from here on
//
// Rank 0 uses its model, or an engine of it, as any other. Where options.device_type is THALWEG_CUDA, device_index is
// this rank's GPU: of_launcher.local_rank. The connections are neither encrypted nor authenticated.

// NOLINTBEGIN: this is C
#include "thalweg/thalweg.h"

#ifdef THALWEG_KERNELS_ONLY
#error "thalweg_ranks.h declares what a library of kernels alone lacks"
#endif

#ifdef __cplusplus
extern "C" {
#endif
THALWEG_API_BEGIN

// How the ranks' messages travel.
typedef enum thalweg_rank_transport {
  THALWEG_RANKS_TCP = 0,  // sockets; rank 0 listens at `address` and `port`, and the others meet there
  THALWEG_RANKS_MPI = 1,  // Open MPI's library, loaded at run time: for processes that mpirun or srun started
} thalweg_rank_transport;

// What the ranks of a model share.
typedef enum thalweg_rank_split {
  THALWEG_SPLIT_TENSOR = 0,    // heads and experts: each has some of every layer, and takes part in every step
  THALWEG_SPLIT_SEQUENCE = 1,  // the tokens of long prompts: each has the whole model, and all sequences' states
} thalweg_rank_split;

typedef struct thalweg_rank_options {
  size_t struct_size;
  int32_t rank;
  int32_t count;
  int32_t transport;       // thalweg_rank_transport; ignored if count is 1
  char address[256];       // of rank 0's host, ended with a zero; TCP
  int32_t port;            // TCP
  double timeout_seconds;  // a rank that is silent for longer is given up
  int32_t on_this_host;    // ranks that share this machine's processors, for thalweg_model_options.threads
  int32_t local_rank;      // among them: which of the machine's GPUs is this rank's
} thalweg_rank_options;

// What a rank needs of its machine's memory for a model.
typedef struct thalweg_rank_memory {
  size_t struct_size;
  uint64_t weight_bytes;       // of its share, copies included
  uint64_t copied_bytes;       // of them, that are copied at load
  uint64_t state_bytes;        // of a sequence, without keys and values
  uint64_t cache_token_bytes;  // of keys and values, per token; 16 bits a number
  int32_t key_heads;           // of the gated delta rule
  int32_t query_heads;         // of attention
  int32_t kv_heads;            // that its query heads read
  int32_t experts;
} thalweg_rank_memory;

THALWEG_DECLARE_INIT(rank_options)
THALWEG_DECLARE_INIT(rank_memory)

// What a launcher left in the environment, with the defaults of thalweg_rank_options_init for the rest; one rank, if it
// left nothing. ranks.h says which variables are read.
thalweg_status thalweg_ranks_from_environment(thalweg_rank_options* options);

// Waits for the other ranks, at most timeout_seconds. A model keeps what it needs of the connections: the order in
// which the two are freed does not matter. One model at a time uses them.
thalweg_status thalweg_ranks_connect(const thalweg_rank_options* options, thalweg_ranks** ranks);
void thalweg_ranks_free(thalweg_ranks* ranks);
int32_t thalweg_ranks_rank(const thalweg_ranks* ranks);
int32_t thalweg_ranks_count(const thalweg_ranks* ranks);
int32_t thalweg_ranks_local_rank(const thalweg_ranks* ranks);

// Why the ranks no longer run together, UTF-8 that is not ended with a zero; empty while they do. Writes at most
// `capacity` bytes and sets *count to the number there are. Any thread may ask, while others use the model.
thalweg_status thalweg_ranks_failure(const thalweg_ranks* ranks, char* text, size_t capacity, size_t* count);

// On a rank above 0, instead of every other function but those of text and properties: does what rank 0 does, until
// rank 0's model, or its engine, is freed. Fails on every rank that is left when one is lost.
thalweg_status thalweg_model_follow(thalweg_model* model);

// For each of `count` ranks, into memories[count], each prepared by thalweg_rank_memory_init. `split` is a
// thalweg_rank_split. Fails for a file that cannot be read, or whose model cannot be cut so often.
thalweg_status thalweg_rank_memory_of(const char* path, int32_t count, int32_t split, thalweg_rank_memory* memories);

THALWEG_API_END
#ifdef __cplusplus
}
#endif
// NOLINTEND
