#pragma once

// Checks each access of a kernel: bounds, initialization of threadgroup memory, data races.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace thalweg::metal {

inline constexpr std::size_t kMaxThreadgroupBytes = 32768;

enum class AddressSpace : std::uint8_t { kDevice, kConstant, kThreadgroup };

// The thread that accesses memory, and the intervals that barriers have ordered before it. Intervals are numbered
// through the run; each threadgroup and each of its barriers begins a new one.
struct Accessor {
  std::uint32_t thread = 0;                // in its threadgroup
  std::uint32_t simd_epoch = 0;            // barriers that its simdgroup has passed in this threadgroup
  std::uint32_t interval = 0;              // the current one
  std::uint32_t threadgroup_interval = 0;  // began with the last barrier that ordered threadgroup memory
  std::uint32_t device_interval = 0;       // began with the last barrier that ordered device memory
  std::uint32_t threadgroup_begin = 0;     // first interval of this threadgroup
  std::uint32_t launch_begin = 0;          // first interval of a launch that may still be running
};

class MemoryChecks {
 public:
  MemoryChecks();

  // Clears all marks for a new run.
  void reset();
  // The buffers of a launch.
  void set_buffers(std::vector<std::pair<const void*, std::size_t>> buffers, unsigned writable, const void* parameters,
                   std::size_t parameter_bytes);
  void set_threadgroup_bytes(std::size_t bytes) { threadgroup_bytes_ = bytes; }
  void* threadgroup_memory() { return threadgroup_memory_; }
  // Fills it with NaN, so that results of an undetected uninitialized read are wrong as well.
  void poison_threadgroup_memory();

  // Describes the fault of an access; empty if there is none.
  std::string check(const void* address, std::size_t bytes, bool write, bool atomic, const Accessor& now,
                    AddressSpace& space);

 private:
  struct Mark {
    std::uint32_t interval = 0;  // 0: none
    std::uint32_t thread : 10;
    std::uint32_t simd_epoch : 22;

    Mark() : thread(0), simd_epoch(0) {}
    explicit Mark(const Accessor& by) : interval(by.interval), thread(by.thread), simd_epoch(by.simd_epoch) {}
  };
  // The marks of two bytes of memory.
  struct Cell {
    Mark write, read, other_read;
    bool atomic = false;  // whether the last write was atomic
  };
  static constexpr std::size_t kCellBytes = 2;
  static constexpr std::size_t kPageCells = 2048;
  using Page = std::array<Cell, kPageCells>;

  struct Region {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool readable = true;
    bool writable = false;
    AddressSpace space = AddressSpace::kDevice;
    int buffer = 0;
  };

  const Region* find(std::uintptr_t begin, std::uintptr_t end);
  std::string outside(std::uintptr_t begin, std::size_t bytes, bool write) const;
  Cell& device_cell(std::uintptr_t address);
  static bool ordered(const Mark& mark, const Accessor& now, bool device);
  static std::string mark(Cell& cell, bool write, bool atomic, const Accessor& now, bool device);

  std::vector<Region> regions_;
  std::size_t last_region_ = 0;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<std::pair<std::uintptr_t, Page*>, 64> page_cache_{};
  std::vector<std::byte> threadgroup_storage_;
  std::byte* threadgroup_memory_;
  std::vector<Cell> threadgroup_cells_;
  std::size_t threadgroup_bytes_ = 0;
};

}  // namespace thalweg::metal
