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

// How far an oracle goes along with the operation's own rounding.
enum class Precision {
  kExact,    // float64 throughout: the truth
  kRounded,  // rounds where the contract rounds, in stores and between steps: the plain same-precision implementation
  // kRounded, and what MatmulPrecision::kFast allows besides; only of the mixture of experts.
  k16Bit,  // operands of matmuls and the experts' outputs are rounded to bf16
  k8Bit,   // activations of matmuls with block-format weights are rounded to 8 bits, 32 to a scale
};

// Reads any tensor on the host, block formats included; an absent one gives an empty array.
Array read(const ConstTensor& tensor);

// The value that storing to `dtype` leaves; identity for Precision::kExact.
double rounded(DType dtype, double value, Precision precision);
void round_all(Array& array, DType dtype, Precision precision);

}  // namespace thalweg::reference
