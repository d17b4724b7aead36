#include "plugin/session/fault_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "../memory/gate.h"

namespace encore::plugin {
namespace {

using namespace encore::test;
using ::testing::HasSubstr;

struct Look {
  device::FaultRef fault;
  int64_t index;
  DEVICE_FN void operator()(int64_t) const { fault.checked_index(index, 10); }
};

TEST(FaultCells, AreOfOneStreamEach) {
  FaultCells faults(0, false);
  const int good = faults.number("Gather node 'good'"), bad = faults.number("Gather node 'bad'");
  const device::Stream one(0), other(0);
  device::for_each_index(one, 4, Look{{faults.of(one), good}, 9});
  device::for_each_index(other, 4, Look{{faults.of(other), bad}, 10});
  one.ref().synchronize();
  other.ref().synchronize();
  faults.check(one);
  EXPECT_THAT(message_of([&] { faults.check(other); }, Code::invalid_input),
              HasSubstr("Gather node 'bad': index 10 is outside [-10, 10)"));
  faults.check(other);  // cleared
}

TEST(FaultCells, AreOfOneThreadEachWhereThreadsShareAStream) {
  FaultCells faults(0, true);
  const int bad = faults.number("bad");
  const device::Stream stream(0);
  device::for_each_index(stream, 4, Look{{faults.of(stream), bad}, 10});
  stream.ref().synchronize();
  std::thread([&] { faults.check(stream); }).join();
  message_of([&] { faults.check(stream); }, Code::invalid_input);
}

TEST(FaultCells, AreLeftToTheRunThatIsUnderWay) {
  FaultCells faults(0, false);
  const int bad = faults.number("bad");
  const device::Stream stream(0);
  faults.enter(stream);
  device::for_each_index(stream, 1, Look{{faults.of(stream), bad}, -11});
  stream.ref().synchronize();
  faults.check_unless_in_run(stream);
  faults.leave(stream);
  message_of([&] { faults.check_unless_in_run(stream); }, Code::invalid_input);
}

TEST(FaultCells, AreAsManyAsStreams) {
  FaultCells faults(0, false);
  std::vector<device::Stream> streams;
  std::set<device::FaultCell*> cells;
  for (int i = 0; i < 300; ++i) {
    streams.emplace_back(0);
    cells.insert(faults.of(streams.back()));
    EXPECT_EQ(faults.of(streams.back())->node, 0);
  }
  EXPECT_EQ(cells.size(), 300u);
  EXPECT_TRUE(cells.contains(faults.of(streams.front())));
}

}  // namespace
}  // namespace encore::plugin
