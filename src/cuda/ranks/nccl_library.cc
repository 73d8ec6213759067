#include "cuda/ranks/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "thalweg/error.h"

namespace thalweg::cu {
namespace {

constexpr const char* kFile = "libnccl.so.2";
// bf16 came with 2.10, ncclGetLastError with 2.13.
constexpr int kLeastVersion = 21300;

std::string version_name(int version) {
  // 2.8 and before counted otherwise.
  if (version < 10000) return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10);
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void set_variables() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // Connections are made at the beginning, not by the first call of a kind, which may be within a recording.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  // The buffers of a graph would be exchanged between the ranks as it is recorded.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

}  // namespace

Nccl load_nccl(const std::string& file) {
  Nccl f{};
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded until the process ends
  if (library == nullptr) {
    const char* why = dlerror();
    f.unavailable = "no NCCL: " + std::string(why != nullptr ? why : file);
    return f;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && f.unavailable.empty()) f.unavailable = "no NCCL: " + file + " has no " + name;
  };
  find(f.get_version, "ncclGetVersion");
  find(f.get_unique_id, "ncclGetUniqueId");
  find(f.comm_init_rank, "ncclCommInitRank");
  find(f.comm_destroy, "ncclCommDestroy");
  find(f.comm_abort, "ncclCommAbort");
  find(f.comm_get_async_error, "ncclCommGetAsyncError");
  find(f.all_reduce, "ncclAllReduce");
  find(f.all_gather, "ncclAllGather");
  find(f.send, "ncclSend");
  find(f.receive, "ncclRecv");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.get_error_string, "ncclGetErrorString");
  find(f.get_last_error, "ncclGetLastError");
  int version = 0;
  if (f.unavailable.empty() && (f.get_version(&version) != kNcclSuccess || version < kLeastVersion)) {
    f.unavailable = "NCCL " + version_name(version) + ": needs " + version_name(kLeastVersion) + " or later";
  }
  if (f.unavailable.empty()) return f;
  Nccl absent{};
  absent.unavailable = f.unavailable;
  return absent;
}

const Nccl& nccl() {
  static const Nccl library = [] {
    set_variables();
    return load_nccl(kFile);
  }();
  return library;
}

void check_nccl(int result, NcclComm communicator) {
  if (result == kNcclSuccess) return;
  std::string why = nccl().get_error_string(result);
  const char* const detail = nccl().get_last_error(communicator);
  if (detail != nullptr && *detail != '\0') why += std::string(": ") + detail;
  throw Error("ranks", "NCCL", "a call that succeeds", why);
}

}  // namespace thalweg::cu
