#include "thalweg/tensor.h"

#include <gtest/gtest.h>

#include "core/sequences.h"

namespace thalweg {
namespace {

TEST(Tensor, ContiguousStridesCountElements) {
  float data[24];
  const Tensor tensor(data, DType::kF32, {2, 3, 4});
  EXPECT_EQ(tensor.size(), 24);
  EXPECT_EQ(tensor.stride(0), 12);
  EXPECT_EQ(tensor.stride(2), 1);
  EXPECT_EQ(tensor.row(1, 2), data + 20);
}

TEST(Tensor, RowsOfBlockFormatsAreCountedInBytesOfBlocks) {
  unsigned char data[2 * 3 * 144];
  const ConstTensor tensor(data, DType::kQ4_K, {2, 3 * 256});
  EXPECT_EQ(tensor.row(1), data + 3 * 144);
}

TEST(Tensor, AnAbsentOneIsNotDefined) {
  EXPECT_FALSE(ConstTensor().defined());
  EXPECT_TRUE(ConstTensor(nullptr, DType::kF32, {0}).defined());
  EXPECT_EQ(to_string(ConstTensor()), "nothing");
}

TEST(Tensor, PrintsStridesOnlyWhereTheyMatter) {
  float data[24];
  Tensor tensor(data, DType::kBF16, {2, 3});
  EXPECT_EQ(to_string(tensor), "BF16 [2,3]");
  tensor.strides[0] = 8;
  EXPECT_EQ(to_string(tensor), "BF16 [2,3] with strides [8,1]");
}

TEST(Sequences, ChunksOfPackedSequencesAreNumberedThroughThem) {
  const std::int32_t bounds[] = {0, 0, 5, 70, 70, 71};
  const Sequences sequences(ConstTensor(bounds, DType::kI32, {6}), 1, 71);
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
