#include "ops/dispatch.h"

namespace thalweg {

void validate(const EmbeddingArgs& args, Check& check) {
  Dim t{"T"}, vocabulary{"vocabulary"}, d{"D"};
  check.input("ids", args.ids, {DType::kI32}, t);
  check.input("table", args.table, kWeightTypes, vocabulary, d);
  check.output("y", args.y, kFloatTypes, t, d);
  if (!check.host_values()) return;
  const auto* ids = static_cast<const std::int32_t*>(args.ids.data);
  for (std::int64_t i = 0; i < t.value; ++i) {
    if (ids[i] >= 0 && ids[i] < vocabulary.value) continue;
    check.fail("ids", "values from 0 to " + std::to_string(vocabulary.value - 1), std::to_string(ids[i]));
  }
}

THALWEG_OPERATION(embedding, EmbeddingArgs);

}  // namespace thalweg
