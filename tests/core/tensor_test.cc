#include "thalweg/tensor.h"

#include <gtest/gtest.h>

#include "core/sequences.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

TEST(Tensor, ContiguousStridesCountElements) {
  float data[24];
  const Tensor tensor(data, DType::kF32, {2, 3, 4}, kCpu);
  EXPECT_EQ(tensor.size(), 24);
  EXPECT_EQ(tensor.stride(0), 12);
  EXPECT_EQ(tensor.stride(2), 1);
  EXPECT_EQ(tensor.row(1, 2), data + 20);
}

TEST(Tensor, RowsOfBlockFormatsAreCountedInBytesOfBlocks) {
  unsigned char data[2 * 3 * 144] = {};
  const ConstTensor tensor(data, DType::kQ4_K, {2, 3 * 256}, kCpu);
  EXPECT_EQ(tensor.row(1), data + 3 * 144);
}

TEST(Tensor, RefusesMoreDimensionsThanItHolds) {
  float data[64];
  EXPECT_EQ(Tensor(data, DType::kF32, {2, 2, 2, 2, 2}, kCpu).rank, 5);
  try {
    Tensor(data, DType::kF32, {2, 2, 2, 2, 2, 2}, kCpu);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Tensor: shape: expected at most 5 dimensions, got 6");
  }
}

TEST(Tensor, AnAbsentOneIsNotDefined) {
  EXPECT_FALSE(ConstTensor().defined());
  EXPECT_TRUE(ConstTensor(nullptr, DType::kF32, {0}, kCpu).defined());
  EXPECT_EQ(to_string(ConstTensor()), "nothing");
}

TEST(Tensor, PrintsStridesOnlyWhereTheyMatter) {
  float data[24];
  Tensor tensor(data, DType::kBF16, {2, 3}, kCpu);
  EXPECT_EQ(to_string(tensor), "BF16 [2,3]");
  tensor.strides[0] = 8;
  EXPECT_EQ(to_string(tensor), "BF16 [2,3] with strides [8,1]");
}

TEST(TensorViews, ReshapeSplitsAndMergesDimensions) {
  float data[48];
  const Tensor rows(data, DType::kF32, {2, 3, 8}, kCpu);
  const Tensor merged = reshape(rows, {6, 2, 4});
  EXPECT_EQ(to_string(merged), "F32 [6,2,4]");
  EXPECT_EQ(merged.row(4, 1), data + 36);
  EXPECT_EQ(to_string(reshape(merged, {48})), "F32 [48]");
  EXPECT_EQ(to_string(reshape(rows, {1, 2, 1, 3, 8})), "F32 [1,2,1,3,8]");
  EXPECT_EQ(to_string(reshape(ConstTensor(data, DType::kF32, {0, 8}, kCpu), {1, 0, 2, 4})), "F32 [1,0,2,4]");
}

TEST(TensorViews, ReshapeKeepsTheStridesOfRows) {
  float data[4 * 10];
  const Tensor rows = column_range(Tensor(data, DType::kF32, {4, 10}, kCpu), 2, 6);
  const Tensor heads = reshape(rows, {2, 2, 3, 2});
  EXPECT_EQ(to_string(heads), "F32 [2,2,3,2] with strides [20,10,2,1]");
  EXPECT_EQ(heads.row(1, 0, 2), data + 2 + 2 * 10 + 4);
  EXPECT_EQ(to_string(reshape(heads, {4, 6})), "F32 [4,6] with strides [10,1]");
  EXPECT_THROW(reshape(rows, {24}), Error);
  EXPECT_THROW(reshape(rows, {2, 12}), Error);
  EXPECT_THROW(reshape(rows, {4, 5}), Error);
  EXPECT_THROW(reshape(rows, {1, 1, 1, 2, 2, 6}), Error);
  EXPECT_THROW(reshape(Tensor(), {0}), Error);
}

TEST(TensorViews, NarrowAndSelectMoveTheData) {
  float data[24];
  const Tensor tensor(data, DType::kF32, {2, 3, 4}, kCpu);
  const Tensor middle = narrow(tensor, 1, 1, 2);
  EXPECT_EQ(to_string(middle), "F32 [2,2,4] with strides [12,4,1]");
  EXPECT_EQ(middle.data, data + 4);
  const Tensor second = select(tensor, 1);
  EXPECT_EQ(to_string(second), "F32 [3,4]");
  EXPECT_EQ(second.data, data + 12);
  EXPECT_EQ(second.dim(2), 0);
  EXPECT_EQ(to_string(narrow(tensor, 0, 2, 0)), "F32 [0,3,4]");
  EXPECT_THROW(narrow(tensor, 1, 2, 2), Error);
  EXPECT_THROW(narrow(tensor, 3, 0, 1), Error);
  EXPECT_THROW(narrow(tensor, 0, -1, 1), Error);
  EXPECT_THROW(narrow(Tensor(), 0, 0, 0), Error);
  EXPECT_THROW(select(tensor, 2), Error);
  EXPECT_THROW(select(Tensor(data, DType::kF32, {4}, kCpu), 0), Error);
}

TEST(TensorViews, HeadsAreCutOutOfFusedRows) {
  std::uint16_t data[2 * 20] = {};
  const ConstTensor rows(data, DType::kBF16, {2, 20}, kCpu);
  const ConstTensor heads = head_range(rows, 4, 3, 5);
  EXPECT_EQ(to_string(heads), "BF16 [2,3,5] with strides [20,5,1]");
  EXPECT_EQ(heads.row(1, 2), data + 20 + 4 + 10);
  EXPECT_THROW(head_range(rows, 6, 3, 5), Error);
  EXPECT_THROW(head_range(ConstTensor(data, DType::kBF16, {1, 1, 1, 2, 20}, kCpu), 0, 1, 1), Error);
}

TEST(TensorViews, ColumnsOfBlockFormatsAreWholeBlocks) {
  unsigned char data[2 * 3 * 144] = {};
  const ConstTensor tensor(data, DType::kQ4_K, {2, 3 * 256}, kCpu);
  EXPECT_EQ(column_range(tensor, 256, 512).data, data + 144);
  EXPECT_EQ(narrow(tensor, 0, 1, 1).data, data + 3 * 144);
  EXPECT_THROW(column_range(tensor, 128, 256), Error);
  EXPECT_THROW(column_range(tensor, 0, 100), Error);
}

TEST(TensorViews, KeepTheDeviceAndReduceTheStatedAlignment) {
  alignas(16) float data[64];
  const Device device{DeviceType::kCuda, 3};
  Tensor stated(data, DType::kF32, {4, 16}, device);
  stated.alignment = 8;
  EXPECT_EQ(column_range(stated, 0, 4).alignment, 8);
  EXPECT_EQ(column_range(stated, 4, 4).alignment, 8);
  EXPECT_EQ(head_range(stated, 1, 2, 4).alignment, 4);
  EXPECT_EQ(reshape(stated, {64}).alignment, 8);
  EXPECT_TRUE(select(stated, 1).device == device);
  EXPECT_TRUE(reshape(stated, {2, 32}).device == device);

  // A plan without memory sees the alignment of the run with memory.
  const Tensor planned(nullptr, DType::kF32, {4, 16}, device);
  const Tensor run(data, DType::kF32, {4, 16}, device);
  for (std::int64_t first : {0, 1, 2, 4, 8}) {
    EXPECT_EQ(column_range(planned, first, 1).data, nullptr);
    EXPECT_EQ(address_alignment(column_range(planned, first, 1)), address_alignment(column_range(run, first, 1)))
        << first;
  }
}

TEST(Sequences, ChunksOfPackedSequencesAreNumberedThroughThem) {
  const std::int32_t bounds[] = {0, 0, 5, 70, 70, 71};
  const Sequences sequences(ConstTensor(bounds, DType::kI32, {6}, kCpu), 1, 71);
  EXPECT_EQ(sequences.count(), 5);
  EXPECT_EQ(sequences.total_chunks(64), 4);
  EXPECT_EQ(sequences.first_chunk(4, 64), 3);
  const Chunk third = sequences.chunk(2, 64);
  EXPECT_EQ(third.sequence, 2);
  EXPECT_EQ(third.begin, 69);
  EXPECT_EQ(third.length, 1);
  EXPECT_EQ(third.number, 2);
}

TEST(Sequences, RowsOfABatchHaveChunksOfTheirOwn) {
  const Sequences sequences(ConstTensor(), 3, 65);
  EXPECT_EQ(sequences.total_chunks(64), 6);
  const Chunk last = sequences.chunk(5, 64);
  EXPECT_EQ(last.row, 2);
  EXPECT_EQ(last.begin, 64);
  EXPECT_EQ(last.length, 1);
  EXPECT_EQ(last.number, 1);
}

}  // namespace
}  // namespace thalweg
