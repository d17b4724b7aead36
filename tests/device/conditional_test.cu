// Parts of graphs that run by what a bool on the device says.
#include "device/conditional.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "device/capture_stream.h"
#include "device/copy_many.h"
#include "device/fault.h"
#include "device/label.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

// *is = x[0] < most.
struct IsLess {
  const int* x;
  int most;
  bool* is;
  DEVICE_FN void operator()(int64_t) const { *is = *x < most; }
};
struct Report {
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const { fault.checked_index(i, 0); }
};

class Conditionals : public testing::TestWithParam<bool> {
 protected:
  Conditionals() {
    if (GetParam()) of_captures = CaptureStream(0);
    x.upload(stream, {0, 0, 0, 0});
  }
  ~Conditionals() override { abandon_capture(capturing()); }
  StreamRef capturing() const { return GetParam() ? StreamRef(of_captures) : plain.ref(); }
  GraphExec captured(const std::function<void(StreamRef)>& work) {
    begin_capture(capturing(), CaptureMode::thread_local_);
    work(capturing());
    return end_capture(capturing()).instantiate();
  }
  void say(bool yes) { condition.upload(stream, {char(yes)}); }
  int run(const GraphExec& exec) {
    exec.launch(stream);
    return x.download(stream)[0];
  }
  bool* says() { return reinterpret_cast<bool*>(condition.data()); }
  Body adds(int value, size_t at = 0) {
    return [this, value, at](StreamRef body) { for_each_index(body, 1, AddTo{x.data() + at, value}); };
  }
  Body multiplies(int value) {
    return [this, value](StreamRef body) { for_each_index(body, 1, MultiplyBy{x.data(), value}); };
  }
  void compare(StreamRef on, int most, size_t at = 0) { for_each_index(on, 1, IsLess{x.data() + at, most, says()}); }
  // An action in a body fails, and the capture with it.
  void expect_forbidden(const char* what, Code code, const Body& act) {
    begin_capture(capturing(), CaptureMode::thread_local_);
    adds(1)(capturing());
    try {
      capture_if(capturing(), says(), [&](StreamRef body) {
        adds(1)(body);
        act(body);
      });
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_EQ(encore::name(error.code()), encore::name(code)) << what << ": " << error.what();
    }
    EXPECT_EQ(capturing().capture_status(), CaptureStatus::invalidated) << what;
    EXPECT_ERROR(end_capture(capturing()), Code::capture_failed);
    EXPECT_EQ(capturing().capture_status(), CaptureStatus::none) << what;
  }

  Stream stream{0}, plain{0}, other{0};
  CaptureStream of_captures;
  DeviceArray<int> x{4};
  DeviceArray<char> condition{std::vector<char>{0}};
};

INSTANTIATE_TEST_SUITE_P(, Conditionals, testing::Bool(),
                         [](const auto& info) { return info.param ? "OnCaptureStreams" : "OnStreams"; });

TEST_P(Conditionals, TheDeviceHasThem) { EXPECT_EQ(why_no_conditionals(0), ""); }

TEST_P(Conditionals, BranchesTakeTurns) {
  const GraphExec exec = captured([&](StreamRef on) {
    multiplies(10)(on);
    capture_if(on, says(), adds(1), adds(2));
    multiplies(10)(on);
  });
  int expected = 0;
  for (bool yes : {true, false, false, true, true}) {
    say(yes);
    expected = (expected * 10 + (yes ? 1 : 2)) * 10 % 1'000'000;
    EXPECT_EQ(run(exec), expected);
    x.upload(stream, {expected %= 1000, 0, 0, 0});
  }
}

TEST_P(Conditionals, WithoutAnElse) {
  const GraphExec exec = captured([&](StreamRef on) { capture_if(on, says(), adds(1)); });
  for (bool yes : {true, false, true}) {
    say(yes);
    run(exec);
  }
  EXPECT_EQ(x.download(stream)[0], 2);
}

TEST_P(Conditionals, EmptyBodies) {
  const GraphExec exec = captured([&](StreamRef on) {
    capture_if(
        on, says(), [](StreamRef) {}, adds(5));
    adds(1)(on);
  });
  say(true);
  EXPECT_EQ(run(exec), 1);
  say(false);
  EXPECT_EQ(run(exec), 7);
}

TEST_P(Conditionals, TheConditionIsMadeInTheGraph) {
  const GraphExec exec = captured([&](StreamRef on) {
    compare(on, 3);
    capture_if(on, says(), adds(1), adds(-1));
  });
  for (int expected : {1, 2, 3, 2, 3}) EXPECT_EQ(run(exec), expected);
}

TEST_P(Conditionals, ALoopAsLongAsItHolds) {
  const GraphExec exec = captured([&](StreamRef on) {
    compare(on, 100);
    capture_while(on, says(), [&](StreamRef body) {
      adds(7)(body);
      copy(body, x.data() + 1, x.data(), sizeof(int));
      compare(body, 100);
    });
    adds(1000, 2)(on);
  });
  EXPECT_EQ(run(exec), 105);
  EXPECT_EQ(x.download(stream), (std::vector<int>{105, 105, 1000, 0}));
  EXPECT_EQ(run(exec), 105);  // it does not hold
  EXPECT_EQ(x.download(stream)[2], 2000);
  x.upload(stream, {99, 0, 0, 0});
  EXPECT_EQ(run(exec), 106);
}

TEST_P(Conditionals, BodiesInBodies) {
  DeviceArray<char> inner(std::vector<char>{0});
  bool* const inside = reinterpret_cast<bool*>(inner.data());
  const GraphExec exec = captured([&](StreamRef on) {
    compare(on, 10);
    capture_while(on, says(), [&](StreamRef body) {
      adds(1)(body);
      for_each_index(body, 1, IsLess{x.data(), 5, inside});
      capture_if(body, inside, adds(1, 1), [&](StreamRef branch) {
        for_each_index(branch, 1, IsLess{x.data(), 8, inside});
        capture_if(branch, inside, adds(1, 2));
        adds(1, 3)(branch);
      });
      capture_if(body, inside, adds(0));
      compare(body, 10);
    });
  });
  run(exec);
  EXPECT_EQ(x.download(stream), (std::vector<int>{10, 4, 3, 6}));
  x.upload(stream, {0, 0, 0, 0});
  run(exec);
  EXPECT_EQ(x.download(stream), (std::vector<int>{10, 4, 3, 6}));
}

TEST_P(Conditionals, ALoopInABranch) {
  DeviceArray<char> go(std::vector<char>{0});
  const GraphExec exec = captured([&](StreamRef on) {
    capture_if(on, reinterpret_cast<bool*>(go.data()), [&](StreamRef branch) {
      compare(branch, 6);
      capture_while(branch, says(), [&](StreamRef body) {
        adds(2)(body);
        compare(body, 6);
      });
      adds(100)(branch);
    });
  });
  EXPECT_EQ(run(exec), 0);
  go.upload(stream, {1});
  EXPECT_EQ(run(exec), 106);
}

TEST_P(Conditionals, CopiesAndFillsAndForks) {
  PinnedArray<int> pinned(1, 41);
  Event forked(0), done(0);
  const GraphExec exec = captured([&](StreamRef on) {
    capture_if(on, says(), [&](StreamRef body) {
      copy(body, x.data(), pinned.data(), sizeof(int));
      forked.record(body);
      other.ref().wait(forked);
      fill(other, x.data() + 1, 1, sizeof(int));
      done.record(other);
      adds(1)(body);
      body.wait(done.ref());
      copy(body, x.data() + 2, x.data() + 1, sizeof(int));
    });
  });
  say(true);
  run(exec);
  EXPECT_EQ(x.download(stream), (std::vector<int>{42, 0x01010101, 0x01010101, 0}));
}

TEST_P(Conditionals, KernelsAroundThemAreGivenOtherFunctors) {
  DeviceArray<int> from(std::vector<int>{1, 2}), to(std::vector<int>{0, 0});
  CapturedCopies in, out;
  const auto copies = [](const int* a, int* b) { return std::vector<Copy>{{a, b, sizeof(int)}}; };
  say(true);
  begin_capture(capturing(), CaptureMode::thread_local_);
  in = CapturedCopies(capturing(), copies(from.data(), x.data()));
  capture_if(capturing(), says(), adds(10), adds(20));
  out = CapturedCopies(capturing(), copies(x.data(), to.data()));
  const Graph graph = end_capture(capturing());
  const GraphExec exec = graph.instantiate();
  EXPECT_EQ(run(exec), 11);
  in.set(exec, copies(from.data() + 1, x.data()));
  out.set(exec, copies(x.data(), to.data() + 1));
  say(false);
  EXPECT_EQ(run(exec), 22);
  EXPECT_EQ(to.download(stream), (std::vector<int>{11, 22}));
}

TEST_P(Conditionals, AreListedWithTheirLabels) {
  begin_capture(capturing(), CaptureMode::thread_local_);
  {
    const Label label("choose");
    capture_if(capturing(), says(), adds(1));
  }
  const std::vector<GraphNode> nodes = end_capture(capturing()).nodes();
  const auto found = std::ranges::find(nodes, NodeKind::graph, &GraphNode::kind);
  ASSERT_NE(found, nodes.end());
  EXPECT_EQ(found->label, "choose");
}

TEST_P(Conditionals, FaultsInBodies) {
  PinnedArray<FaultCell> cell(1);
  const GraphExec exec = captured([&](StreamRef on) {
    capture_if(on, says(), [&](StreamRef body) { for_each_index(body, 1, Report{{cell.data(), 7}}); });
  });
  run(exec);
  EXPECT_EQ(cell[0].node, 0);
  say(true);
  run(exec);
  EXPECT_EQ(cell[0].node, 7);
}

TEST_P(Conditionals, WhatABodyMayNotDo) {
  Event outside(0);
  std::vector<int> pageable(1);
  expect_forbidden("allocate", Code::capture_forbidden, [](StreamRef body) { allocate_async(body, 64); });
  expect_forbidden("allocate and free", Code::capture_forbidden,
                   [](StreamRef body) { free_async(body, allocate_async(body, 64)); });
  expect_forbidden("allocate from the driver", Code::capture_forbidden, [](StreamRef) { free(0, allocate(0, 64)); });
  expect_forbidden("synchronize", Code::capture_forbidden, [](StreamRef body) { body.synchronize(); });
  expect_forbidden("copy pageable memory", Code::capture_forbidden,
                   [&](StreamRef body) { copy(body, x.data(), pageable.data(), sizeof(int)); });
  expect_forbidden("wait for an event of the capture around", Code::capture_forbidden, [&](StreamRef body) {
    outside.record(capturing());
    body.wait(outside.ref());
  });
  expect_forbidden("capture on the stream around", Code::capture_forbidden, [&](StreamRef) { adds(1)(capturing()); });
  expect_forbidden("record an event at launches", Code::capture_forbidden,
                   [&](StreamRef body) { outside.ref().record_at_launch(body); });
  expect_forbidden("set a kernel", Code::internal, [](StreamRef body) { latest_kernel(body); });
  expect_forbidden("fail", Code::not_supported, [](StreamRef) { fail(Code::not_supported, "it is not to be had"); });
  expect_forbidden("fail in a body of the body", Code::not_supported, [&](StreamRef body) {
    capture_while(body, says(), [](StreamRef) { fail(Code::not_supported, "it is not to be had"); });
  });
  expect_forbidden("fork and not join", Code::capture_failed, [&](StreamRef body) {
    outside.record(body);
    other.ref().wait(outside);
    adds(1)(other);
  });
  expect_forbidden("fork and not join before a body", Code::capture_failed, [&](StreamRef body) {
    Event joined(0);
    outside.record(body);
    other.ref().wait(outside);
    adds(1)(other);
    joined.record(other);
    capture_if(body, says(), adds(1));
    body.wait(joined.ref());
  });
}

TEST_P(Conditionals, AFailureThatIsCaughtFailsAllTheSame) {
  expect_forbidden("go on", Code::capture_failed, [&](StreamRef body) {
    EXPECT_ERROR(capture_if(body, says(), [](StreamRef) { fail(Code::not_supported, "it is not to be had"); }),
                 Code::not_supported);
    adds(1)(body);
  });
  EXPECT_EQ(x.download(stream)[0], 0);
}

TEST_P(Conditionals, NeedACapture) {
  EXPECT_ERROR(capture_if(stream, says(), adds(1)), Code::internal);
  EXPECT_ERROR(capture_while(stream, says(), adds(1)), Code::internal);
}

}  // namespace
}  // namespace encore::device::tests
