#pragma once

// The interface of a translated .metal file to the executor. C++14, as Metal's dialect.

namespace thalweg {
namespace metal {

enum { kMaxBuffers = 24, kMaxThreadgroupBuffers = 1, kMaxKernels = 64, kMaxConstants = 48 };

// A kernel's memory arguments.
struct Memory {
  void* buffer[kMaxBuffers];
  void* scratch[kMaxThreadgroupBuffers];  // threadgroup memory
};

// A kernel's thread-position arguments, named as their attributes.
struct ThreadPosition {
  unsigned threadgroup_position_in_grid[3];
  unsigned threadgroups_per_grid[3];
  unsigned thread_index_in_threadgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned thread_index_in_simdgroup;
};

struct CompiledKernel {
  const char* name;
  void (*call)(const Memory& memory, const ThreadPosition& position);
  unsigned buffers;   // bit i: the kernel has a buffer i
  unsigned writable;  // bit i: buffer i is not const
  unsigned max_threads;
};

struct CompiledConstant {
  const char* name;
  int* value;
};

struct CompiledProgram {
  CompiledKernel kernels[kMaxKernels];        // ends at a null name
  CompiledConstant constants[kMaxConstants];  // null value after the last
};

}  // namespace metal
}  // namespace thalweg
