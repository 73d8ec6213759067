#pragma once

// Several processes that run one model together, each a rank. RankSplit says what they share: the model (tensor and
// expert parallelism), or long prompts (sequence parallelism).
//
//   ModelOptions options;
//   options.ranks = Ranks::connect(ranks_from_environment());   // under mpirun, torchrun or srun
//   Model model = Model::load("model.gguf", options);
//   if (options.ranks->rank() > 0) return model.follow();        // rank 0 leads from here on
//
// Rank 0 is used like any model, and the other ranks do what its calls do. A rank that dies, or that stays silent for
// `timeout_seconds`, ends the others: each call on them throws an Error that names the rank. Connections are neither
// encrypted nor authenticated: run them on a private network.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thalweg/api.h"

namespace thalweg::comm {
class Communicator;
}

THALWEG_API_BEGIN
namespace thalweg {

// How the ranks' messages travel.
enum class RankTransport : std::uint8_t {
  kTcp,  // sockets; rank 0 listens at `address` and `port`, and the others meet there
  kMpi,  // Open MPI's library, loaded at run time: for processes that mpirun or srun started
};

// What the ranks of a model share.
enum class RankSplit : std::uint8_t {
  kTensor,    // heads and experts: each has some of every layer and runs every step
  kSequence,  // the tokens of long prompts: each has the whole model, and all sequences' states
};

struct RankOptions {
  int rank = 0;
  int count = 1;
  RankTransport transport = RankTransport::kTcp;  // ignored if count is 1
  std::string address = "127.0.0.1";              // of rank 0's host; TCP
  int port = 29500;                               // TCP
  double timeout_seconds = 30;                    // a rank that is silent for longer counts as lost
  int on_this_host = 1;                           // ranks that share this machine's processors
  int local_rank = 0;                             // among them: which of the machine's GPUs is this rank's
};

// What a launcher left in the environment. Open MPI's OMPI_COMM_WORLD_SIZE: MPI. RANK and WORLD_SIZE (torchrun), or
// SLURM_PROCID and SLURM_NTASKS (srun): TCP to MASTER_ADDR, or else SLURM_LAUNCH_NODE_IPADDR, and MASTER_PORT; where
// torchrun itself listens at MASTER_PORT, to the port after it. None of them: one rank. The local rank is
// OMPI_COMM_WORLD_LOCAL_RANK, LOCAL_RANK or SLURM_LOCALID; without it the rank, as of one machine. Throws Error for
// values that are not numbers or contradict each other.
RankOptions ranks_from_environment();

// The connections of one rank with the others. Any thread may call the functions.
class Ranks {
 public:
  // Waits for the other ranks, at most timeout_seconds. Throws Error for options out of range, for a rank that is
  // missing or present twice, and where Open MPI's library is absent.
  static std::shared_ptr<Ranks> connect(const RankOptions& options);

  // `count` ranks of this process, to be used by a thread each.
  static std::vector<std::shared_ptr<Ranks>> in_process(int count, double timeout_seconds = 30);

  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const;
  int count() const;
  int local_rank() const;  // RankOptions::local_rank; of in_process() the rank
  // Why the ranks no longer run together; empty while they do.
  std::string failure() const;

  struct THALWEG_HIDDEN Impl;
  // For the library itself.
  THALWEG_HIDDEN comm::Communicator& communicator() const;

 private:
  explicit Ranks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a rank needs of its machine's memory for a model.
struct RankMemory {
  std::uint64_t weight_bytes = 0;       // of its share, copies included
  std::uint64_t copied_bytes = 0;       // of them, that are copied at load: columns, and rows that lie apart
  std::uint64_t state_bytes = 0;        // of a sequence, without keys and values
  std::uint64_t cache_token_bytes = 0;  // of keys and values, per token; 16 bits a number
  int key_heads = 0;                    // of the gated delta rule
  int query_heads = 0;                  // of attention
  int kv_heads = 0;                     // that its query heads read; replicated where ranks outnumber them
  int experts = 0;
};

// For each of `count` ranks. Throws Error for a file that cannot be read, or whose model cannot be cut so often.
std::vector<RankMemory> rank_memory(const std::string& path, int count, RankSplit split = RankSplit::kTensor);

}  // namespace thalweg
THALWEG_API_END
