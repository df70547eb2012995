// Packed sequences in the planner: what is refused, which rows are counted, and whose peak it is.

#include <gtest/gtest.h>

#include "ladder.h"

namespace oomlab::capstone {
namespace {

TEST(Packing, IsRefusedInOneLine) {
  Work work{nn::parse_transformer("llama:2-4-2-64-172"), 4, 16};
  work.lengths = {16, 3};
  const auto why = [&](const char* options) { return refused(work, plan::parse_levers(options)); };
  EXPECT_EQ(why(""), "");
  EXPECT_EQ(why("--pack --dp 2 --micro-batch 1"), "");
  EXPECT_NE(why("--pack --pp 2").find("stages of --pp"), std::string::npos);
  EXPECT_NE(why("--pack --cp 2 --attention fused").find("leave one of the two out"), std::string::npos);
  EXPECT_NE(why("--pack --checkpoint solved").find("a number of layers"), std::string::npos);
  EXPECT_NE(why("--pack --tp 2 --sequence-parallel").find("divide 3 packed tokens"), std::string::npos);
  work.lengths = {16, 4};
  EXPECT_EQ(why("--pack --tp 2 --sequence-parallel --micro-batch 1"), "");
  work.lengths = {17, 16};
  EXPECT_NE(why("--pack").find("1 to 16 tokens (--seq), not 17"), std::string::npos);
  work.spec = nn::parse_transformer("bert:2-2-32");
  work.lengths = {16, 3};
  EXPECT_EQ(why("--pack"), "");
  EXPECT_NE(why("").find("attend to the padding"), std::string::npos);
}

// Of sequences of one length nothing is saved: what packing has beside tokens and labels is positions and offsets. Of
// others activations are those of so many rows, and padding costs what tokens cost.
TEST(Packing, RowsAreTheTokensThatThereAre) {
  Work work{nn::parse_transformer("llama-3.1-8b"), 8, 2048};
  const Levers padded = plan::parse_levers("--precision bf16 --attention fused --loss chunked --checkpoint 1");
  Levers packed = padded;
  packed.pack = true;
  const Plan of_padded = plan_of(work, padded);
  const std::uint64_t tokens = 8 * 2048;
  Plan of_packed = plan_of(work, packed);
  EXPECT_EQ(of_packed.peak.total() - of_padded.peak.total(), 4 * tokens + 512);
  EXPECT_EQ(of_packed.price.flops, of_padded.price.flops);
  work.lengths = {2048, 1024, 512, 512};
  EXPECT_EQ(plan_of(work, padded).peak, of_padded.peak);
  of_packed = plan_of(work, packed);
  EXPECT_EQ(of_packed.peak[Category::data], 3 * 4 * tokens / 2 + 512);
  const Plan half = plan_of({work.spec, 4, 2048}, padded);
  EXPECT_EQ(of_packed.peak[Category::activations], half.peak[Category::activations]);
  EXPECT_LT(of_packed.price.flops, half.price.flops);  // attention of shorter sequences computes less
}

// However many sequences a step has, its plan asks about one turn of the lengths: the search for the largest batch goes to
// any number of micro-batches.
TEST(Packing, APlanOfManySequencesAsksAboutOneTurn) {
  Work work{nn::parse_transformer("llama-3.1-8b"), 6, 2048};
  work.lengths = {2048, 100, 700};
  const Levers levers = plan::parse_levers("--precision bf16 --attention fused --pack --micro-batch 2");
  const Plan few = plan_of(work, levers);
  work.batch <<= 40;
  const Plan many = plan_of(work, levers);
  EXPECT_EQ(many.peak, few.peak);
  EXPECT_DOUBLE_EQ(many.price.flops, few.price.flops * 0x1p40);
}

// Replicas have lengths of their own: the peak is that of the one that has most.
TEST(Packing, ThePeakIsThatOfTheFullestMicroBatch) {
  Work work{nn::parse_transformer("llama-3.1-8b"), 4, 2048};
  const Levers levers = plan::parse_levers("--precision bf16 --attention fused --pack --dp 2 --micro-batch 1");
  work.lengths = {64, 128, 256, 2048};
  const Plan plan = plan_of(work, levers);
  work.lengths = {2048, 256, 128, 64};
  EXPECT_EQ(plan_of(work, levers).peak, plan.peak);
  work.lengths = {64, 128, 256, 1024};
  EXPECT_LT(plan_of(work, levers).peak.total(), plan.peak.total());
}

}  // namespace
}  // namespace oomlab::capstone
