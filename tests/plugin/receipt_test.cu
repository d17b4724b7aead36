#include "plugin/session/receipt.h"

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

TEST(Receipt, IsOfItsRunAlone) {
  FaultCells faults(0, false);
  const int bad = faults.number("bad");
  const device::Stream stream(0);
  const device::StreamRef streams[] = {stream};
  Receipt first, second, third;
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

TEST(Receipt, OfSeveralStreams) {
  FaultCells faults(0, false);
  const int bad = faults.number("bad");
  const device::Stream one(0), other(0);
  const device::StreamRef streams[] = {one, other};
  Receipt receipt;
  device::for_each_index(other, 1, ReportAlways{{faults.of(other), bad}, 1});
  receipt.write(streams, faults);
  message_of([&] { receipt.wait(); }, Code::invalid_input);
}

TEST(Receipt, KnowsWhenTheRunIsOver) {
  FaultCells faults(0, false);
  const device::Stream stream(0), other(0);
  const device::StreamRef streams[] = {stream};
  Receipt receipt;
  EXPECT_TRUE(receipt.done());
  receipt.wait();
  Gate gate;
  gate.hold(stream);
  receipt.write(streams, faults);
  EXPECT_FALSE(receipt.done());
  receipt.order(other.ref().native());
  EXPECT_FALSE(other.ref().done());
  gate.open();
  receipt.wait();
  EXPECT_TRUE(receipt.done());
  other.ref().synchronize();
}

}  // namespace
}  // namespace encore::plugin
