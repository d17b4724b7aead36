#include "plugin/session/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../memory/gate.h"

namespace encore::plugin {
namespace {

using namespace encore::test;
using ::testing::HasSubstr;

struct ReportAlways {
  device::FaultRef fault;
  int64_t value;
  DEVICE_FN void operator()(int64_t) const { fault.report(device::FaultKind::bad_value, value, 0); }
};

TEST(Completion, IsOfItsRunAlone) {
  FaultCells faults(0, false);
  const int bad = faults.number("bad");
  const device::Stream stream(0);
  const device::StreamRef streams[] = {stream};
  Completion first, second, third;
  device::for_each_index(stream, 4, ReportAlways{{faults.of(stream), bad}, 1});
  first.write(streams, faults);
  second.write(streams, faults);
  device::for_each_index(stream, 4, ReportAlways{{faults.of(stream), bad}, 3});
  third.write(streams, faults);
  second.wait();
  EXPECT_THAT(message_of([&] { third.wait(); }, Code::invalid_input), HasSubstr("bad: a value is not allowed: 3"));
  EXPECT_THAT(message_of([&] { first.wait(); }, Code::invalid_input), HasSubstr("bad: a value is not allowed: 1"));
  faults.check(stream);
  first.wait();  // told once
  first.write(streams, faults);
  first.wait();
}

TEST(Completion, OfSeveralStreams) {
  FaultCells faults(0, false);
  const int bad = faults.number("bad");
  const device::Stream one(0), other(0);
  const device::StreamRef streams[] = {one, other};
  Completion completion;
  device::for_each_index(other, 1, ReportAlways{{faults.of(other), bad}, 1});
  completion.write(streams, faults);
  message_of([&] { completion.wait(); }, Code::invalid_input);
}

TEST(Completion, KnowsWhenTheRunIsOver) {
  FaultCells faults(0, false);
  const device::Stream stream(0), other(0);
  const device::StreamRef streams[] = {stream};
  Completion completion;
  EXPECT_TRUE(completion.done());
  completion.wait();
  Gate gate;
  gate.hold(stream);
  completion.write(streams, faults);
  EXPECT_FALSE(completion.done());
  completion.order(other.ref().native());
  EXPECT_FALSE(other.ref().done());
  gate.open();
  completion.wait();
  EXPECT_TRUE(completion.done());
  other.ref().synchronize();
}

}  // namespace
}  // namespace encore::plugin
