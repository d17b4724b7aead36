// Steps with bodies: If, Loop and Scan. Where the host knows which branch is taken, or how often the body runs, what is
// captured has the branch that was chosen, and each iteration. Where only data on the device says so, an eager run
// reads that back, and what is captured has both branches, or the body once, as parts of a graph that the device
// decides about (device/conditional.h).
//
// Behind its own inputs a step has the values from outside that bodies read on the device, and behind those what they
// read on the host; a body's inputs are the same ones. If's condition is none of them, nor are a Loop's count and
// condition, for which its body has the iteration's number and the condition on the host, in front of the others there;
// or, if it is `by_data`, on the device, in front of its inputs. Of what it carries the first ones may go on in host
// memory (Plan::host_carried). A Loop may have such a body besides, for more
// iterations than a graph is to have one by one; of a Scan's, which knows no number, one is made when that runs. An If
// goes by data if its condition is not on the host.
#pragma once
#include <memory>
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// How many values a Loop's step has in host memory behind its count and condition, and makes there in front.
size_t host_carried(const Step& step);
// How many of the step's inputs, the last ones, are in host memory since bodies read them there.
size_t host_captures(const Step& step);

// Of a graph inside of a node, whose last inputs, as many as `outer_inputs`, are values from outside. Each output is
// made by a step of its own, which may only hand on what comes in.
struct BodyEnds {
  std::vector<int> inputs, host_inputs, outputs;
  size_t host_outputs = 0;  // the first ones
  size_t host_carried = 0;  // of a Loop
  bool by_data = false;     // of a Loop
};
Plan plan_of_body(const Graph& body, BodyEnds ends, size_t outer_inputs, const ops::Settings& settings);

// What runs the step, whose bodies it takes.
std::unique_ptr<ops::Op> make_control_flow(Step& step);

}  // namespace encore::fuse
