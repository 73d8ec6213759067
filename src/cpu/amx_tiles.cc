// The matrix units of x86 processors: TDPBF16PS, 16 x 16 x 32 products in 16 cycles.

#include "cpu/bf16_ops.h"
#include "cpu/tile_loops-inl.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "cpu/amx_operands.h"

namespace thalweg::cpu {
namespace {

// Whether the processor has the instructions, and the kernel lets this process use the registers.
bool ask_for_amx() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16Tiles = 1U << 22;
  constexpr unsigned kTiles = 1U << 24;
  if ((d & kBf16Tiles) == 0 || (d & kTiles) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16Vectors = 1U << 5;
  if ((a & kBf16Vectors) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The assembler needs no flags for these instructions, and the compiler knows no register clobbers for them: a tile
// register lives from asm to asm within multiply_registers alone.
struct AmxUnit {
  // All eight registers have 16 rows of 64 bytes.
  AmxUnit() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::array<std::uint8_t, 14> reserved{};
      std::array<std::uint16_t, 16> row_bytes{64, 64, 64, 64, 64, 64, 64, 64};
      std::array<std::uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Configuration) == 64);
    static constexpr Configuration kConfiguration;
    asm volatile("ldtilecfg %0" ::"m"(kConfiguration) : "memory");
  }
  // Leaves nothing for a context switch to save.
  ~AmxUnit() { asm volatile("tilerelease" ::: "memory"); }
  AmxUnit(const AmxUnit&) = delete;
  AmxUnit& operator=(const AmxUnit&) = delete;

  template <int kRegister>
  void load_sums(const float* from, std::int64_t row = kTileSide) {
    load_rows<kRegister>(from, row * static_cast<std::int64_t>(sizeof(*from)));
  }
  template <int kRegister>
  void store_sums(float* to, std::int64_t row = kTileSide) {
    const std::int64_t row_bytes = row * static_cast<std::int64_t>(sizeof(*to));
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kRegister) : "memory");
  }
  template <int kRegister>
  void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
  }
  template <int kRegister>
  void load(const std::uint16_t* from, std::int64_t row = kTileDepth) {
    load_rows<kRegister>(from, row * static_cast<std::int64_t>(sizeof(*from)));
  }
  void prefetch_half(const float* sums) {
    constexpr std::int64_t kLine = 64 / sizeof(float);
    for (std::int64_t at = 0; at < kTileSums / 2; at += kLine) __builtin_prefetch(sums + at);
  }
  template <int kSums, int kWeights, int kActivations>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kWeights), "i"(kActivations));
  }

 private:
  template <int kRegister>
  void load_rows(const void* from, std::int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kRegister) : "memory");
  }
};

void multiply(const TileBlock& block) {
  AmxUnit unit;
  multiply_tiles(unit, block);
}

void multiply_rows(const TileProduct& product) {
  AmxUnit unit;
  multiply_row_tiles(unit, product);
}

bool is_usable() {
  static const bool asked = ask_for_amx();
  // Of the instruction sets for x86, AVX-512 alone has vectors of 16 floats.
  return asked && matmul_ops().tile_rows == kMaxTileRows;
}

}  // namespace

const TileOps* amx_tile_ops() {
  static constexpr TileOps kInstance{amx_pack, amx_decode, multiply, amx_transpose};
  return is_usable() ? &kInstance : nullptr;
}

const Bf16Ops* amx_bf16_ops() {
  static constexpr Bf16Ops kInstance{amx_pack, multiply_rows, amx_round, amx_pair_rows, amx_transpose};
  return is_usable() ? &kInstance : nullptr;
}

}  // namespace thalweg::cpu

#else

namespace thalweg::cpu {

const TileOps* amx_tile_ops() { return nullptr; }
const Bf16Ops* amx_bf16_ops() { return nullptr; }

}  // namespace thalweg::cpu

#endif
