#include "cases/nn.h"

#include <cmath>
#include <cstring>

#include "quant/blocks.h"
#include "quant/pack.h"

namespace thalweg::cases {

Case bench_case(Case made) {
  made.verify = false;
  made.bench = true;
  return made;
}

Case large_case(Case made) {
  made.verify = false;
  made.large = true;
  return made;
}

Tensor q8_0_input(Memory& memory, const std::vector<std::int64_t>& shape, const Memory::Generator& value) {
  return memory.input_bytes(DType::kQ8_0, shape, [&](void* row, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = static_cast<float>(value());
    std::vector<BlockQ8_0> blocks(static_cast<std::size_t>(count / 32));
    pack(DType::kQ8_0, values.data(), count, blocks.data());
    constexpr std::uint16_t kNan = 0x7E00;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (std::isnan(values[32 * i])) blocks[i].scale = Word16::of(kNan);
    }
    std::memcpy(row, blocks.data(), static_cast<std::size_t>(bytes_of(DType::kQ8_0, count)));
  });
}

Tensor integers(Memory& memory, const std::vector<std::int64_t>& values) {
  std::size_t i = 0;
  return memory.input(DType::kI32, {static_cast<std::int64_t>(values.size())},
                      [&] { return static_cast<double>(values[i++]); });
}

Tensor cu_seqlens_of(Memory& memory, const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> bounds = {0};
  for (const std::int64_t length : lengths) bounds.push_back(bounds.back() + length);
  return integers(memory, bounds);
}

std::string list_name(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += "_" + std::to_string(value);
  return text;
}

void add_nn_cases(std::vector<Case>& cases) {
  add_conv_cases(cases);
  add_row_cases(cases);
  add_attention_cases(cases);
  add_move_cases(cases);
}

}  // namespace thalweg::cases
