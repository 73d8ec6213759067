#include "ops/row_hints.h"

namespace thalweg {
namespace {

template <class Args>
class RowHints : public testing::Test {};
TYPED_TEST_SUITE(RowHints, row_hints::Operations, row_hints::OperationName);

TYPED_TEST(RowHints, RowsHaveTheBitsThatTheyHaveAlone) {
  row_hints::expect_rows_alone_in_cases<TypeParam>(Stream::cpu(2));
}

}  // namespace
}  // namespace thalweg
