// Ranks: processes that run one model together. What waits for others does so without the interpreter's lock.

#include "thalweg/ranks.h"

#include <nanobind/nanobind.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "extension/bindings.h"
#include "thalweg/error.h"

namespace nb = nanobind;

namespace thalweg::python {
namespace {

PyRanks connect(const RankOptions& options) {
  const nb::gil_scoped_release release;
  return {Ranks::connect(options), options.on_this_host};
}

RankTransport transport_of(const std::string& name) {
  if (name == "tcp") return RankTransport::kTcp;
  if (name == "mpi") return RankTransport::kMpi;
  throw Error("Ranks", "transport", "'tcp' or 'mpi'", "'" + name + "'");
}

RankSplit split_of(const std::string& name) {
  if (name == "tensor") return RankSplit::kTensor;
  if (name == "sequence") return RankSplit::kSequence;
  throw Error("Model", "rank_split", "'tensor' or 'sequence'", "'" + name + "'");
}

// Its share of the machine's processors; where the launcher has bound it to some, at most those.
int threads_of(const PyRanks& ranks) {
  const auto share = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) / std::max(1, ranks.on_this_host);
  return std::clamp(share, 1, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace

void set_ranks(ModelOptions& options, const PyRanks* ranks, const std::string& rank_split, const std::string& device) {
  options.rank_split = split_of(rank_split);
  if (ranks == nullptr) return;
  options.ranks = ranks->connected;
  if (ranks->connected->count() == 1) return;
  if (device == "cuda") options.device->index = ranks->connected->local_rank();
  if (options.threads == 0) options.threads = threads_of(*ranks);
}

void bind_ranks(nb::module_& module) {
  nb::class_<PyRanks>(
      module, "Ranks",
      "This process among those that run one model together: Model(path, ranks=Ranks.connect(...)).\n\n"
      "Rank 0 uses its Model or Engine as any other; the others call Model.follow(), and do what rank 0\n"
      "does. All give the same options. The connections are neither encrypted nor authenticated.")
      .def_static(
          "from_environment",
          [](double timeout) {
            RankOptions options = ranks_from_environment();
            options.timeout_seconds = timeout;
            return connect(options);
          },
          nb::kw_only(), nb::arg("timeout") = RankOptions().timeout_seconds,
          "Connects as the variables of mpirun, torchrun or srun say: OMPI_COMM_WORLD_SIZE and so on, or RANK,\n"
          "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or SLURM_PROCID and so on; one rank, if there are "
          "none.\n"
          "Raises thalweg.Error, naming the variable, for values that are no numbers or do not fit each other.")
      .def_static(
          "connect",
          [](int rank, int count, const std::string& transport, const std::string& address, int port, double timeout,
             std::optional<int> local_rank, int on_this_host) {
            return connect({.rank = rank,
                            .count = count,
                            .transport = transport_of(transport),
                            .address = address,
                            .port = port,
                            .timeout_seconds = timeout,
                            .on_this_host = on_this_host,
                            .local_rank = local_rank.value_or(rank)});
          },
          nb::kw_only(), nb::arg("rank"), nb::arg("count"), nb::arg("transport") = "tcp",
          nb::arg("address") = RankOptions().address, nb::arg("port") = RankOptions().port,
          nb::arg("timeout") = RankOptions().timeout_seconds, nb::arg("local_rank") = nb::none(),
          nb::arg("on_this_host") = RankOptions().on_this_host,
          nb::sig("def connect(*, rank: int, count: int, transport: typing.Literal['tcp', 'mpi'] = 'tcp', "
                  "address: str = '127.0.0.1', port: int = 29500, timeout: float = 30.0, "
                  "local_rank: int | None = None, on_this_host: int = 1) -> Ranks"),
          "Waits for the other ranks, at most `timeout` seconds, after which a silent rank is given up later too.\n\n"
          "transport: 'tcp', where rank 0 listens at `address` and `port` and the others meet, or 'mpi' for processes\n"
          "that mpirun or srun started. local_rank: which of the machine's GPUs is this rank's; None for `rank`.\n"
          "on_this_host: how many ranks share this machine's processors. Raises thalweg.Error, naming the argument, "
          "for\n"
          "options out of range, for a rank that is missing or there twice, and where Open MPI's library is absent.")
      .def_prop_ro(
          "rank", [](const PyRanks& self) { return self.connected->rank(); }, "0 leads.")
      .def_prop_ro(
          "count", [](const PyRanks& self) { return self.connected->count(); }, "How many ranks there are.")
      .def_prop_ro(
          "local_rank", [](const PyRanks& self) { return self.connected->local_rank(); },
          "Which of the machine's GPUs is this rank's.")
      .def_prop_ro(
          "failure", [](const PyRanks& self) { return self.connected->failure(); },
          "Why the ranks no longer run together; '' while they do. Any thread may ask.");
}

}  // namespace thalweg::python
