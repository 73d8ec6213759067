#pragma once

// NCCL, loaded at run time, so that nothing else needs it. The declarations are those of its binary interface,
// libnccl.so.2.

#include <cstddef>
#include <string>

namespace thalweg::cu {

using NcclComm = struct NcclCommOpaque*;  // ncclComm_t
struct NcclId {                           // ncclUniqueId
  char bytes[128];
};
using NcclStream = void*;  // cudaStream_t

constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;
constexpr int kNcclUint8 = 1;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclSum = 0;

struct Nccl {
  int (*get_version)(int*);
  int (*get_unique_id)(NcclId*);
  int (*comm_init_rank)(NcclComm*, int count, NcclId, int rank);
  int (*comm_destroy)(NcclComm);
  int (*comm_abort)(NcclComm);
  int (*comm_get_async_error)(NcclComm, int*);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int dtype, int operation, NcclComm, NcclStream);
  int (*all_gather)(const void* from, void* to, std::size_t count, int dtype, NcclComm, NcclStream);
  int (*send)(const void*, std::size_t count, int dtype, int to, NcclComm, NcclStream);
  int (*receive)(void*, std::size_t count, int dtype, int from, NcclComm, NcclStream);
  int (*group_start)();
  int (*group_end)();
  const char* (*get_error_string)(int);
  const char* (*get_last_error)(NcclComm);
  std::string unavailable;  // empty, or why there is no NCCL: then the functions are null
};

// The process's NCCL. The first call loads it, and sets the variables of the environment that it reads where the user
// has not: ranks must not differ in what they negotiate while a graph is recorded, and NVLink's multicast stays off.
const Nccl& nccl();
// Any file of the kind, for tests.
Nccl load_nccl(const std::string& file);

// Throws thalweg::Error unless `result` is success.
void check_nccl(int result, NcclComm communicator);

}  // namespace thalweg::cu
