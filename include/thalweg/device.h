#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/api.h"

THALWEG_API_BEGIN
namespace thalweg {

enum class DeviceType : std::uint8_t { kCpu, kCuda, kMetal };

constexpr std::string_view device_type_name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kMetal:
      return "metal";
  }
  return "?";
}

// Where the bytes of a tensor live. The device of its tensors decides which backend runs an operation.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend constexpr bool operator==(Device, Device) = default;
};

// The host's memory.
inline constexpr Device kCpu{};

// Kernels of kFast for few and for many rows of activations may round differently. kByCount takes the faster one for
// the rows of a call. The others take the same one for any number, so that a row's bits do not depend on what else is
// in the call: kFew suits decode steps, kMany prompts. With CUDA calls take longer for it.
enum class RowHint : std::uint8_t { kByCount, kFew, kMany };

// The caller's own threads for the CPU, instead of the library's pool.
struct ThreadPool {
  // Calls work(context, i) exactly once for each i in 0..workers-1, on whatever threads it likes, the calling one
  // included, and returns when all calls have returned; must not throw. The calls share the work between them, so that
  // those that run late find nothing left to do; running them one after the other is correct too, only slower. Several
  // threads may call this at once if several of them run operations.
  void (*run)(void* user, int workers, void (*work)(void* context, int worker), void* context) = nullptr;
  void* user = nullptr;
};

// Where an operation runs and in which order. On the CPU a call returns when the work is done, having used up to
// `threads` threads of the library's pool (0: every hardware thread), or of `pool`; results do not depend on the
// number, bit for bit. On a GPU, `native` is the caller's own queue (cudaStream_t, id<MTLCommandQueue>) and a call only
// enqueues. With CUDA, a call reads weights (matrices in block formats, routers, the weights of norms, frequencies)
// while the library's calls ahead of it may still run: if one of those writes them, synchronize() in between.
//
// Any number of threads may run operations at once, if none writes what another one uses: calls share the library's
// pool, which has as many threads as the largest request, less the calling one. An idle thread helps any call that has
// work left, and a call never waits for another one.
struct Stream {
  Device device;
  int threads = 0;
  void* native = nullptr;
  RowHint rows = RowHint::kByCount;
  const ThreadPool* pool = nullptr;  // null: the library's

  static constexpr Stream cpu(int threads = 0) { return Stream{{DeviceType::kCpu, 0}, threads, nullptr}; }
};

// Scratch memory of an operation, owned by the caller. It may be reused as soon as the operation has finished; two
// operations that run at once must not share it. workspace_size(args, stream) returns the bytes that are needed, and
// `data` is aligned to kWorkspaceAlignment.
// Contents are unspecified before and after a run.
inline constexpr std::size_t kWorkspaceAlignment = 64;

struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Scratch memory on the host that grows on demand and is kept between calls, for callers without an allocator of their
// own. One thread at a time may use it.
//   HostWorkspace scratch;
//   l2norm(args, scratch.reserve(workspace_size(args, stream)), stream);
class HostWorkspace {
 public:
  // At least `bytes` bytes, valid until the next call; throws std::bad_alloc.
  Workspace reserve(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      bytes_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  static constexpr std::align_val_t kAlignment{kWorkspaceAlignment};
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<std::byte, Delete> memory_;
  std::size_t bytes_ = 0;
};

// Why a GPU skipped sequences or slots, whose values the host cannot check beforehand: bits or-ed into an operation's
// tensor `fault`. The library never clears it.
enum DeviceFault : std::int32_t {
  kFaultCuSeqlens = 1,     // cu_seqlens decreases, or leaves 0..T
  kFaultStateIndices = 2,  // a state index is neither -1 nor a slot of the pool
  kFaultExpertIds = 4,     // an expert id is neither -1 nor in 0..E-1
  kFaultLogits = 8,        // a sequence's logits are NaN or +infinity, or all -infinity
  kFaultReplays = 16,      // a replay count is not in 0..R, or a sequence has more drafts than R
};

// How a kernel multiplies.
enum class Arithmetic : std::uint8_t {
  kF32,    // f32 products and sums
  k16Bit,  // matrix units: operands rounded to bf16 or f16, sums in f32
  k8Bit,   // activations rounded to 8 bits, 32 to a scale, and multiplied as integers; sums in f32
};

// What planning a call says about one kernel.
struct KernelVerdict {
  std::string kernel;
  bool supported = false;
  // If not supported, why. Otherwise which kernel is preferred, or what is notable about what this one does, or empty.
  std::string reason;
  Arithmetic arithmetic = Arithmetic::kF32;
};

// The kernels of the backend that the arguments select. Of those that support them the one of lowest estimated cost
// runs, unless select_kernel() or the environment variable THALWEG_KERNEL=<operation>:<kernel>[,...] names another.
struct Explanation {
  std::string operation;
  std::string backend;
  std::vector<KernelVerdict> kernels;
  int chosen = -1;  // index into kernels; -1: none supports the arguments
};

}  // namespace thalweg
THALWEG_API_END
