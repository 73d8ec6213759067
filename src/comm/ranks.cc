#include "thalweg/ranks.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/communicator.h"
#include "comm/transport.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> number(const char* name) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw Error("ranks", name, "a number", *text);
  }
  return value;
}

void check(const RankOptions& options) {
  const auto require = [](bool condition, std::string_view what, const std::string& expected,
                          const std::string& given) {
    if (!condition) throw Error("RankOptions", what, expected, given);
  };
  require(options.count >= 1 && options.count <= 1024, "count", "1 to 1024", std::to_string(options.count));
  require(options.rank >= 0 && options.rank < options.count, "rank",
          "a number from 0 to " + std::to_string(options.count - 1), std::to_string(options.rank));
  require(options.local_rank >= 0 && options.local_rank < options.count, "local_rank",
          "a number from 0 to " + std::to_string(options.count - 1), std::to_string(options.local_rank));
  require(options.timeout_seconds > 0 && options.timeout_seconds <= 86400, "timeout_seconds", "above 0, at most 86400",
          std::to_string(options.timeout_seconds));
  require(options.port >= 1 && options.port <= 65535, "port", "1 to 65535", std::to_string(options.port));
}

}  // namespace

RankOptions ranks_from_environment() {
  RankOptions options;
  if (const std::optional<int> size = number("OMPI_COMM_WORLD_SIZE")) {
    options.transport = RankTransport::kMpi;
    options.count = *size;
    options.rank = number("OMPI_COMM_WORLD_RANK").value_or(0);
    options.on_this_host = number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1);
    options.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(options.rank);
  } else if (const std::optional<int> world = number("WORLD_SIZE")) {
    options.count = *world;
    const std::optional<int> rank = number("RANK");
    if (!rank && *world > 1) throw Error("ranks", "RANK", "a number beside WORLD_SIZE", "none");
    options.rank = rank.value_or(0);
    options.on_this_host = number("LOCAL_WORLD_SIZE").value_or(1);
    options.local_rank = number("LOCAL_RANK").value_or(options.rank);
  } else if (const std::optional<int> tasks = number("SLURM_NTASKS"); tasks && variable("SLURM_PROCID")) {
    options.count = *tasks;
    options.rank = number("SLURM_PROCID").value_or(0);
    options.on_this_host = number("SLURM_NTASKS_PER_NODE").value_or(1);
    options.local_rank = number("SLURM_LOCALID").value_or(options.rank);
    options.address = variable("SLURM_LAUNCH_NODE_IPADDR").value_or(options.address);
  }
  options.address = variable("MASTER_ADDR").value_or(options.address);
  options.port = number("MASTER_PORT").value_or(options.port);
  // torchrun's own store listens there.
  if (variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") ++options.port;
  check(options);
  return options;
}

struct Ranks::Impl {
  std::unique_ptr<comm::Communicator> communicator;
  int local_rank = 0;
};

Ranks::Ranks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ranks::~Ranks() = default;

std::shared_ptr<Ranks> Ranks::connect(const RankOptions& options) {
  check(options);
  int rank = options.rank;
  int count = options.count;
  std::unique_ptr<comm::Transport> transport;
  if (count > 1 && options.transport == RankTransport::kMpi) {
    transport = comm::connect_mpi(rank, count);
    if (rank != options.rank || count != options.count) {
      throw Error("RankOptions", "rank", "MPI's: " + std::to_string(rank) + " of " + std::to_string(count),
                  std::to_string(options.rank) + " of " + std::to_string(options.count));
    }
  } else if (count > 1) {
    transport = comm::connect_tcp({rank, count, options.address, options.port, options.timeout_seconds});
  } else {
    transport = std::move(comm::connect_threads(1).front());
  }
  auto impl = std::make_unique<Impl>();
  impl->communicator = std::make_unique<comm::Communicator>(rank, count, options.timeout_seconds, std::move(transport));
  impl->local_rank = options.local_rank;
  return std::shared_ptr<Ranks>(new Ranks(std::move(impl)));
}

std::vector<std::shared_ptr<Ranks>> Ranks::in_process(int count, double timeout_seconds) {
  RankOptions options;
  options.count = count;
  options.timeout_seconds = timeout_seconds;
  check(options);
  std::vector<std::shared_ptr<Ranks>> all;
  for (std::unique_ptr<comm::Transport>& transport : comm::connect_threads(count)) {
    auto impl = std::make_unique<Impl>();
    impl->communicator = std::make_unique<comm::Communicator>(static_cast<int>(all.size()), count, timeout_seconds,
                                                              std::move(transport));
    impl->local_rank = static_cast<int>(all.size());
    all.push_back(std::shared_ptr<Ranks>(new Ranks(std::move(impl))));
  }
  return all;
}

int Ranks::rank() const { return impl_->communicator->rank(); }
int Ranks::count() const { return impl_->communicator->size(); }
int Ranks::local_rank() const { return impl_->local_rank; }
std::string Ranks::failure() const { return impl_->communicator->failure(); }
comm::Communicator& Ranks::communicator() const { return *impl_->communicator; }

}  // namespace thalweg
