#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "thalweg/tensor.h"

namespace thalweg::reference {

// A dense float64 array: what the oracles compute with.
class Array {
 public:
  Array() = default;
  explicit Array(std::vector<std::int64_t> shape, double fill = 0.0);
  Array(std::initializer_list<std::int64_t> shape, double fill = 0.0) : Array(std::vector<std::int64_t>(shape), fill) {}

  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t dim(int i) const { return shape_[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(values.size()); }

  template <class... Index>
  double& operator()(Index... index) {
    return values[offset(index...)];
  }
  template <class... Index>
  double operator()(Index... index) const {
    return values[offset(index...)];
  }

  std::vector<double> values;  // row-major

 private:
  template <class... Index>
  std::size_t offset(Index... index) const {
    std::int64_t result = 0;
    std::size_t axis = 0;
    ((result = result * shape_[axis++] + static_cast<std::int64_t>(index)), ...);
    return static_cast<std::size_t>(result);
  }

  std::vector<std::int64_t> shape_;
};

// Which roundings of the operation an oracle applies.
enum class Precision {
  kExact,    // none: float64 throughout
  kRounded,  // those of the contract, in stores and between steps, as a plain implementation would
  // Those of kRounded, and what MatmulPrecision::kFast allows besides; only of matmuls and the mixture of experts.
  k16Bit,  // operands of matmuls and the outputs of experts to bf16
  k8Bit,   // activations of matmuls with block-format weights to 8 bits, 32 to a scale
};

// Reads any tensor on the host, block formats included; an absent one gives an empty array.
Array read(const ConstTensor& tensor);

// The value after a store to `dtype`; the identity for Precision::kExact.
double rounded(DType dtype, double value, Precision precision);
void round_all(Array& array, DType dtype, Precision precision);

}  // namespace thalweg::reference
