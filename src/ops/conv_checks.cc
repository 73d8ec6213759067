#include "ops/conv_checks.h"

namespace thalweg {

void check_taps(Check& check, const ConstTensor& weight, const ConstTensor& bias, Dim& channels, Dim& window) {
  Dim taps{"W"};
  check.input("weight", weight, kFloatTypes, channels, taps);
  if (!(taps.value >= 2 && taps.value <= 8)) check.fail("weight", "between 2 and 8 taps", std::to_string(taps.value));
  if (bias.defined()) check.input("bias", bias, {weight.dtype}, channels);
  window.value = taps.value - 1;
}

void check_activation(const Check& check, Activation activation) {
  if (!(activation == Activation::kNone || activation == Activation::kSilu)) {
    check.fail("activation", "Activation::kNone or Activation::kSilu", "none of them");
  }
}

}  // namespace thalweg
