#include "cases/nn.h"

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
