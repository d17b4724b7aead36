#include "plugin/model/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace encore::plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Graphs written as op(inputs) -> outputs. In the names of inputs and outputs a leading '#' marks a host slot.
class Sketch {
 public:
  Sketch& constant(const std::string& name) { return friendly_.insert(name), *this; }
  Sketch& input(const std::string& name) { return outside_.insert(name), *this; }
  Sketch& from_around(const std::string& name) { return around_.insert(name), input(name); }
  Sketch& on_host(const std::string& name) { return on_host_.insert(name), *this; }
  Sketch& wanted_on_host(const std::string& name) { return wanted_on_host_.insert(name), *this; }
  Sketch& node(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
               bool claimable = true, bool shape_like = true) {
    PlacementNode node{.name = name,
                       .claimable = claimable,
                       .shape_like = shape_like,
                       .may_join = claimable || shape_like,
                       .is_host_op = shape_like};
    for (const auto& slot : inputs) add(slot, node.inputs, node.host_inputs);
    for (const auto& slot : outputs) add(slot, node.outputs, node.host_outputs);
    graph_.nodes.push_back(node);
    return *this;
  }
  PlacementGraph graph() const {
    PlacementGraph graph = graph_;
    graph.host_friendly.resize(numbers_.size());
    graph.from_outside.resize(numbers_.size());
    graph.from_around.resize(numbers_.size());
    graph.on_host.resize(numbers_.size());
    graph.wanted_on_host.resize(numbers_.size());
    graph.large_constants.resize(numbers_.size());
    for (const auto& [name, number] : numbers_) {
      graph.host_friendly[size_t(number)] = friendly_.contains(name);
      graph.from_outside[size_t(number)] = outside_.contains(name);
      graph.from_around[size_t(number)] = around_.contains(name);
      graph.on_host[size_t(number)] = on_host_.contains(name);
      graph.large_constants[size_t(number)] = large_.contains(name);
      graph.wanted_on_host[size_t(number)] = wanted_on_host_.contains(name);
    }
    return graph;
  }
  std::vector<std::string> on_cpu() const {
    const auto flags = shape_arithmetic(graph());
    std::vector<std::string> names;
    for (size_t i = 0; i < flags.size(); ++i)
      if (flags[i]) names.push_back(graph_.nodes[i].name);
    return names;
  }
  Sketch& large(const std::string& constant) { return large_.insert(constant), *this; }
  Sketch& one_of_several() { return graph_.is_alone = false, *this; }
  Sketch& few() { return graph_.nodes.back().is_small = true, *this; }  // made by the last node
  // What is on the host if all are one; "nothing" if they can't be.
  std::vector<std::string> as_one() const {
    const HostPart part = host_part(graph(), std::vector<int>(graph_.nodes.size()));
    if (!part.lacking.empty()) return {"nothing"};
    std::vector<std::string> names;
    for (size_t i = 0; i < part.nodes.size(); ++i)
      if (part.nodes[i]) names.push_back(graph_.nodes[i].name);
    return names;
  }
  Sketch& inside(const std::string& value) {  // a graph inside of the last node reads it
    return graph_.nodes.back().read_inside.push_back(number(value)), *this;
  }
  // The last node is control flow that Encore may run; what graphs inside of it read there is among `host`.
  Sketch& with_bodies(const std::vector<std::string>& read, const std::vector<std::string>& host = {}) {
    for (const auto& value : read) inside(value);
    for (const auto& value : host) graph_.nodes.back().host_reads.push_back(number(value));
    return *this;
  }
  // Data may decide what it does, and then it reads none of that on the host.
  Sketch& or_by_data() {
    graph_.nodes.back().has_bodies = true;
    graph_.nodes.back().do_without = [](PlacementNode& node, const std::vector<int>& lacking) {
      const auto lacks = [&](int value) { return std::ranges::count(lacking, value) > 0; };
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (lacks(node.inputs[i])) node.host_inputs[i] = false;
      std::erase_if(node.host_reads, lacks);
      return true;
    };
    return *this;
  }
  Sketch& fetched(const std::string& value) {  // from the last node
    return graph_.nodes.back().fetched.push_back(number(value)), *this;
  }
  Sketch& hands_on(bool read_inside) { return graph_.hands_on_read_inside = read_inside, *this; }
  Sketch& has_lone_parts() { return graph_.has_lone_parts = true, *this; }
  // The regions, and what each computes on the host.
  std::vector<std::set<std::string>> regions() const {
    const PlacementGraph graph = decided();
    const std::vector<int> of = plugin::regions(graph, shape_arithmetic(graph));
    std::vector<std::set<std::string>> names(size_t(std::ranges::max(of) + 1));
    const HostPart part = host_part(graph, of);
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i] >= 0) names[size_t(of[i])].insert(graph_.nodes[i].name + (part.nodes[i] ? " on host" : ""));
    std::ranges::sort(names);
    return names;
  }
  // Of what a loop carries, the host has to hand on those, and to compute that; each goes on as its name with "+".
  std::pair<std::vector<std::string>, std::vector<std::string>> carried(const std::vector<std::string>& values) {
    std::vector<Carried> ends;
    for (const auto& value : values) ends.push_back({number(value), number(value + "+")});
    const HostCarried found = carried_on_host(graph(), ends);
    std::pair<std::vector<std::string>, std::vector<std::string>> names;
    for (size_t i = 0; i < values.size(); ++i)
      if (found.values[i]) names.first.push_back(values[i]);
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (found.nodes[i]) names.second.push_back(graph_.nodes[i].name);
    return names;
  }
  int64_t in_small_regions() const {
    return std::ranges::count(plugin::regions(graph(), shape_arithmetic(graph())), kInSmallRegion);
  }
  std::vector<std::string> copies_between_regions() const {
    const PlacementGraph graph = decided();
    const PlacementGraph joined = with_parts(graph, plugin::regions(graph, shape_arithmetic(graph)));
    return crossings(joined, shape_arithmetic(joined));
  }
  std::vector<std::string> copies() const { return crossings(graph(), shape_arithmetic(graph())); }

 private:
  PlacementGraph decided() const {
    PlacementGraph made = graph();
    let_data_decide(made, shape_arithmetic(made));
    return made;
  }
  void add(const std::string& slot, std::vector<int>& values, std::vector<bool>& host) {
    host.push_back(slot.starts_with('#'));
    const std::string name = slot.starts_with('#') ? slot.substr(1) : slot;
    values.push_back(name.empty() ? -1 : number(name));
  }
  int number(const std::string& value) { return numbers_.try_emplace(value, int(numbers_.size())).first->second; }
  PlacementGraph graph_;
  std::map<std::string, int> numbers_;
  std::set<std::string> friendly_, outside_, around_, on_host_, wanted_on_host_, large_;
};

TEST(Placement, TheShapeOfAReshapeIsComputedOnTheCpu) {
  Sketch s;
  s.input("x").constant("zero").constant("tail");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "zero"}, {"n"}).node("Concat", {"n", "tail"}, {"d"});
  s.node("Reshape", {"x", "#d"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), ElementsAre("Gather", "Concat"));
  EXPECT_THAT(s.copies(), IsEmpty());
}

TEST(Placement, TheOrderOfNodesDoesNotMatter) {
  Sketch s;
  s.input("x").constant("zero");
  s.node("Reshape", {"x", "#d"}, {"y"}, true, false);
  s.node("Unsqueeze", {"n", "#zero"}, {"d"}).node("Gather", {"s", "zero"}, {"n"}).node("Shape", {"x"}, {"#s"});
  EXPECT_THAT(s.on_cpu(), ElementsAre("Unsqueeze", "Gather"));
}

TEST(Placement, WhatStartsFromDeviceDataStaysOnTheDevice) {
  Sketch s;
  s.input("ids").constant("one");
  s.node("Add", {"ids", "one"}, {"a"}).node("Gather", {"table", "a"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), IsEmpty());
  EXPECT_THAT(s.copies(), IsEmpty());
}

// Positions: Range takes its ends from host memory and writes what the device wants; no copy is needed.
TEST(Placement, RangeWhoseResultIsWantedOnTheDeviceMovesThere) {
  Sketch s;
  s.input("x").constant("zero").constant("one");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"});
  s.node("Range", {"#zero", "#n", "#one"}, {"r"}).node("Unsqueeze", {"r", "#zero"}, {"u"});
  s.node("Embed", {"table", "u"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), ElementsAre("Gather"));
  EXPECT_THAT(s.copies(), IsEmpty());
}

// The shape of an Expand as torch writes it: Where(Equal(shape, -1), ones, shape).
TEST(Placement, ConstantOfShapeWithinShapeArithmeticStaysOnTheCpu) {
  Sketch s;
  s.input("x").constant("minus");
  s.node("Shape", {"x"}, {"#s"}).node("ShapeOf", {"s"}, {"#ss"}).node("ConstantOfShape", {"#ss"}, {"ones"});
  s.node("Mul", {"ones", "minus"}, {"m"}).node("Equal", {"s", "m"}, {"e"}).node("Where", {"e", "ones", "s"}, {"w"});
  s.node("Expand", {"x", "#w"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), ElementsAre("ShapeOf", "ConstantOfShape", "Mul", "Equal", "Where"));
  EXPECT_THAT(s.copies(), IsEmpty());
}

TEST(Placement, AreasWithManyWaysThroughThemAreLookedAtOnce) {
  Sketch s;
  s.input("x").node("Shape", {"x"}, {"#s"}).node("Range", {"#s"}, {"v0"});
  for (int i = 0; i < 100; ++i) {
    const std::string from = "v" + std::to_string(i), to = "v" + std::to_string(i + 1);
    s.node("Add", {from, from}, {to});
  }
  s.node("Embed", {"table", "v100"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), IsEmpty());
}

TEST(Placement, AScaleFromAShapeHasToBeCopiedOnce) {
  Sketch s;
  s.input("x").constant("one");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"}).node("Cast", {"n"}, {"f"});
  s.node("Div", {"x", "f"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), ElementsAre("Gather", "Cast"));
  EXPECT_THAT(s.copies(), ElementsAre("Cast -> Div"));
}

TEST(Placement, CopiesAroundANodeWithoutKernelAreSeen) {
  Sketch s;
  s.input("x");
  s.node("Relu", {"x"}, {"a"}, true, false).node("Unknown", {"a"}, {"b"}, false, false);
  s.node("Abs", {"b"}, {"y"}, true, false);
  EXPECT_THAT(s.on_cpu(), IsEmpty());
  EXPECT_THAT(s.copies(), ElementsAre("Relu -> Unknown", "Unknown -> Abs"));
}

// As one node a model has on the host what is wanted there, though it is wanted on the device, too.
TEST(Placement, AsOneNodeSizesAreOnTheHost) {
  Sketch s;
  s.input("x").constant("zero").constant("one");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"}).node("Range", {"#zero", "#n", "#one"}, {"r"});
  s.node("Mul", {"r", "n"}, {"m"}).node("Embed", {"table", "m"}, {"y"}, true, false);
  EXPECT_THAT(s.as_one(), ElementsAre("Gather"));
}

TEST(Placement, AsOneNodeFewNumbersAreComputedOnTheHost) {
  Sketch s;
  s.input("x").constant("one");
  s.node("Sqrt", {"f"}, {"root"}).few().node("Cast", {"n"}, {"f"}).few();
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"}).few();
  s.node("Div", {"x", "root"}, {"y"}, true, false);
  EXPECT_THAT(s.as_one(), ElementsAre("Sqrt", "Cast", "Gather"));
}

TEST(Placement, AsOneNodeManyNumbersAreComputedOnTheDevice) {
  Sketch s;
  s.input("x").constant("one");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"}).node("Cast", {"n"}, {"f"});
  s.node("Div", {"x", "f"}, {"y"}, true, false);
  EXPECT_THAT(s.as_one(), IsEmpty());
}

TEST(Placement, AsOneNodeTheHostHasWhatTheDeviceLacks) {
  Sketch s;
  s.input("x");
  s.node("Shape", {"x"}, {"#s"}).node("Unknown", {"s"}, {"u"}, false).node("Div", {"x", "u"}, {"y"}, true, false);
  EXPECT_THAT(s.as_one(), ElementsAre("Unknown"));
}

TEST(Placement, SizesThatDependOnDataAreNoneOfOneNodes) {
  Sketch made, given, unknown;
  made.input("x").node("Max", {"x"}, {"m"}).node("Expand", {"x", "#m"}, {"y"}, true, false);
  EXPECT_THAT(made.as_one(), ElementsAre("nothing"));
  given.input("x").input("n").node("Expand", {"x", "#n"}, {"y"}, true, false);
  EXPECT_THAT(given.as_one(), ElementsAre("nothing"));
  unknown.input("x").node("Shape", {"x"}, {"#s"}).node("Exp", {"s"}, {"e"}, true, false);
  unknown.node("Expand", {"x", "#e"}, {"y"}, true, false);
  EXPECT_THAT(unknown.as_one(), ElementsAre("nothing"));
}

using Regions = std::vector<std::set<std::string>>;

TEST(Regions, OfAModelThatIsAllEncoresThereIsOne) {
  Sketch s;
  s.input("x").constant("one");
  s.node("Div", {"r", "f"}, {"y"}, true, false).node("Relu", {"x"}, {"r"}, true, false);
  s.node("Shape", {"r"}, {"#s"}).node("Gather", {"s", "one"}, {"n"}).few().node("Cast", {"n"}, {"f"}).few();
  EXPECT_EQ(s.regions(), (Regions{{"Cast on host", "Div", "Gather on host", "Relu", "Shape"}}));
  EXPECT_THAT(s.copies_between_regions(), IsEmpty());
}

TEST(Regions, NoPathLeavesOneAndComesBack) {
  Sketch s;
  s.input("x");
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("Unknown", {"b"}, {"u"}, false, false);
  s.node("C", {"b"}, {"c"}, true, false).node("D", {"c", "u"}, {"d"}, true, false).node("E", {"d"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "C"}, {"D", "E"}}));
}

TEST(Regions, APathThroughAGraphInsideOfANodeIsOne) {
  Sketch s;
  s.input("x");
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("If", {"condition"}, {"i"}, false, false).inside("b");
  s.node("C", {"b", "i"}, {"c"}, true, false).node("D", {"c"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C", "D"}}));
}

// What an If by x's shape is made of.
Sketch& shape_choice(Sketch& s) {
  s.input("x").input("z").constant("one");
  s.node("A", {"x"}, {"a"}, true, false).node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "one"}, {"n"});
  return s.node("Equal", {"n", "one"}, {"c"}).node("If", {"#c"}, {"i"}, true, false);
}

TEST(Regions, ABranchThatShapesChooseIsInside) {
  Sketch s;
  shape_choice(s).with_bodies({"a", "one"}).node("B", {"i"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Equal on host", "Gather on host", "If", "Shape"}}));
  EXPECT_THAT(s.copies_between_regions(), IsEmpty());
}

TEST(Regions, ABranchThatDataChooseIsOutside) {
  Sketch s;
  s.input("x").node("A", {"x"}, {"a"}, true, false).node("Max", {"a"}, {"c"}, true, false);
  s.node("If", {"#c"}, {"i"}, true, false).with_bodies({"a"}).node("B", {"i"}, {"b"}, true, false);
  s.node("C", {"b"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "Max"}, {"B", "C"}}));
}

TEST(Regions, ABranchThatDataMayChooseIsInside) {
  for (const bool hands_on : {true, false}) {
    Sketch s;
    s.input("x").input("z").node("A", {"x"}, {"a"}, true, false).node("Max", {"a"}, {"c"}, true, false);
    s.node("If", {"#c"}, {"i"}, true, false).or_by_data().with_bodies({"a", "z"}, {"z"});
    s.node("B", {"i"}, {"b"}, true, false).node("C", {"b"}, {"y"}, true, false).hands_on(hands_on);
    // What is left outside reads the condition on the host.
    EXPECT_EQ(s.regions(), hands_on ? (Regions{{"A", "B", "C", "If", "Max"}}) : (Regions{{"A", "Max"}, {"B", "C"}}));
    EXPECT_EQ(s.copies_between_regions(),
              hands_on ? std::vector<std::string>() : std::vector<std::string>{"Max -> If"});
  }
}

TEST(Regions, WhatShapesSayIsNotLeftToData) {
  Sketch s;
  shape_choice(s).or_by_data().with_bodies({"a", "n"}, {"n"}).node("B", {"i"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Equal on host", "Gather on host", "If", "Shape"}}));
}

TEST(Regions, NorIsWhatTheHostHasOutside) {
  Sketch s;
  s.input("k").on_host("k").constant("one").input("x").node("Equal", {"k", "one"}, {"c"});
  s.node("A", {"x"}, {"a"}, true, false).node("If", {"#c"}, {"i"}, true, false).or_by_data().with_bodies({"a"});
  s.node("B", {"i"}, {"b"}, true, false).node("C", {"b"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"B", "C"}}));
}

TEST(Regions, WhatIsFetchedIsReadInLaterOnes) {
  Sketch s;
  s.input("x").node("A", {"x"}, {"a"}, true, false).node("Loop", {"a"}, {"l", "all"}, true, false).fetched("all");
  s.node("B", {"l"}, {"b"}, true, false)
      .node("C", {"all"}, {"c"}, true, false)
      .node("D", {"c", "b"}, {"d"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Loop"}, {"C", "D"}}));
  s.node("Other", {"d"}, {"o"}, false, false)
      .node("E", {"o"}, {"e"}, true, false)
      .node("F", {"e", "l"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Loop"}, {"C", "D"}, {"E", "F"}}));
  s.node("If", {"x"}, {"i"}, true, false).inside("all").node("G", {"i", "a"}, {"g"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Loop"}, {"C", "D"}, {"E", "F"}, {"G", "If"}}));
}

TEST(Regions, WhatIsReadInsideOnTheHostIsToBeThere) {
  Sketch s;
  shape_choice(s).with_bodies({"n", "a"}, {"n"}).node("B", {"i"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B", "Equal on host", "Gather on host", "If", "Shape"}}));
  Sketch t;
  shape_choice(t).with_bodies({"a"}, {"a"}).node("B", {"i"}, {"b"}, true, false).node("C", {"b"}, {"y"}, true, false);
  EXPECT_EQ(t.regions(), (Regions{{"B", "C"}}));
}

TEST(Regions, WhatIsOnlyReadInsideMayBeLost) {
  for (const bool hands_on : {true, false}) {
    Sketch s;
    shape_choice(s).with_bodies({"z"}).node("B", {"i"}, {"b"}, true, false).node("C", {"b"}, {"y"}, true, false);
    s.hands_on(hands_on);
    EXPECT_EQ(s.regions().size(), 1u);
    EXPECT_EQ(s.regions()[0].contains("If"), hands_on);
    s.node("D", {"z", "y"}, {"w"}, true, false);  // reads it, too
    EXPECT_TRUE(s.regions()[0].contains("If"));
  }
}

TEST(Regions, WhatABodyComputesOnTheHostOnceItIsThereStaysOutside) {
  for (const bool is_around : {true, false}) {
    Sketch s;
    (is_around ? s.from_around("n") : s.input("n")).input("x").constant("one");
    s.node("A", {"x"}, {"a"}, true, false).node("Shape", {"a"}, {"#s"}).node("Add", {"n", "one"}, {"k"});
    s.node("Concat", {"s", "k"}, {"d"}).node("Expand", {"a", "#d"}, {"e"}, true, false);
    s.node("B", {"e"}, {"b"}, true, false).node("C", {"b"}, {"y"}, true, false);
    EXPECT_EQ(s.regions().back(), (std::set<std::string>{"B", "C"}));
    EXPECT_EQ(s.regions().size(), is_around ? 1u : 2u);
  }
}

TEST(Regions, OneNodeIsNone) {
  Sketch s;
  s.input("x").node("A", {"x"}, {"a"}, true, false).node("Unknown", {"a"}, {"u"}, false, false);
  s.node("B", {"u"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), Regions{});
  s.has_lone_parts();
  EXPECT_EQ(s.regions(), (Regions{{"A"}, {"B"}}));
}

TEST(Regions, OfVeryManyTheSmallestAreNone) {
  Sketch s;
  s.input("v0");
  const auto value = [](size_t i) { return "v" + std::to_string(i); };
  size_t made = 0;
  const auto add = [&](const char* name, bool claimable) {
    s.node(name, {value(made)}, {value(made + 1)}, claimable, false);
    ++made;
  };
  for (size_t i = 0; i < kMostRegions + 2; ++i) {
    const bool is_small = i == 3 || i == 100;
    for (const char* name : {"A", "B", "C"})
      if (!is_small || *name != 'C') add(name, true);
    add("Unknown", false);
  }
  const Regions regions = s.regions();
  EXPECT_EQ(regions.size(), kMostRegions);
  EXPECT_EQ(regions.front(), (std::set<std::string>{"A", "B", "C"}));
  EXPECT_EQ(s.in_small_regions(), 4);
}

TEST(Regions, AsManyAsThereMayBeLeaveNone) {
  Sketch s;
  s.input("v0");
  for (size_t i = 0; i < kMostRegions; ++i) {
    const std::string from = "v" + std::to_string(i), to = "v" + std::to_string(i + 1);
    s.node("A", {from}, {"a" + from}, true, false).node("B", {"a" + from}, {"b" + from}, true, false);
    s.node("Unknown", {"b" + from}, {to}, false, false);
  }
  s.node("C", {"v" + std::to_string(kMostRegions)}, {"y"}, true, false);
  EXPECT_EQ(s.regions().size(), kMostRegions);
  EXPECT_EQ(s.in_small_regions(), 0);
}

TEST(Regions, WhatOnlyALaterOneReadsGoesThere) {
  Sketch s;
  s.input("x").constant("scale").constant("zero");
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("Unknown", {"b"}, {"u"}, false, false);
  s.node("Weights", {"scale"}, {"w"}, true, false).node("C", {"u", "w"}, {"c"}, true, false);
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "zero"}, {"n"}).node("Reshape", {"c", "#n"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C", "Gather on host", "Reshape", "Shape", "Weights"}}));
}

TEST(Regions, OneNodeIsOneIfItReadsALargeConstantThatAnotherHas) {
  Sketch s;
  s.input("x").constant("w").constant("v").large("w").large("v");
  s.node("A", {"x", "w"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("Unknown", {"b"}, {"u"}, false, false).node("C", {"u", "w"}, {"c"}, true, false);
  s.node("Unknown", {"c"}, {"t"}, false, false).node("D", {"t", "v"}, {"d"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C"}}));
  s.one_of_several();  // where others may read the other
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C"}, {"D"}}));
}
TEST(Regions, OneNodeIsNoneIfItReadsOnTheHostWhatIsNotThere) {
  Sketch s;
  s.input("n").constant("w").large("w").one_of_several();
  s.node("Expand", {"w", "#n"}, {"e"}, true, false);
  EXPECT_EQ(s.regions(), Regions{});
}
TEST(Regions, NorIfItsBodyDoes) {
  Sketch s;
  s.input("n").constant("w").large("w").one_of_several();
  s.node("Loop", {"w"}, {"e"}, true, false).with_bodies({"n"}, {"n"});
  EXPECT_EQ(s.regions(), Regions{});
}
TEST(Regions, WhatIsComputedFromWhatOnlyTheHostHasStaysThere) {
  Sketch s;
  s.input("x").on_host("iteration").constant("most").constant("zero");
  s.node("Less", {"iteration", "most"}, {"l"}).node("Not", {"l"}, {"go"});
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "zero"}, {"n"}).node("Both", {"n", "iteration"}, {"c"});
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a", "iteration"}, {"b"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}}));
}
TEST(Regions, WhatTheNodeAroundReadsOnTheHostStaysThereIfItWouldWithoutThem) {
  Sketch s;
  s.input("x").constant("most").constant("zero").wanted_on_host("go").wanted_on_host("d");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "zero"}, {"n"}).node("Less", {"n", "most"}, {"go"});
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"d"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}}));
}
TEST(Regions, WhoReadsOnTheHostWhatIsNotThereIsNotInside) {
  Sketch s;
  s.input("x").input("n");
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("Expand", {"b", "#n"}, {"e"}, true, false);
  s.node("C", {"e"}, {"c"}, true, false).node("D", {"c"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C", "D"}}));
}

// Two regions want the same size, and one alone could have it: it stays on the CPU for both.
TEST(Regions, SizesThatAreReadOnTheHostOutsideStayThere) {
  Sketch s;
  s.input("x").constant("zero");
  s.node("Shape", {"x"}, {"#s"}).node("Gather", {"s", "zero"}, {"n"});
  s.node("A", {"x"}, {"a"}, true, false).node("B", {"a"}, {"b"}, true, false);
  s.node("Reshape", {"b", "#n"}, {"r"}, true, false).node("Unknown", {"r"}, {"u"}, false, false);
  s.node("Expand", {"u", "#n"}, {"e"}, true, false).node("C", {"e"}, {"c"}, true, false);
  s.node("D", {"c"}, {"y"}, true, false);
  EXPECT_EQ(s.regions(), (Regions{{"A", "B"}, {"C", "D"}}));
  EXPECT_THAT(s.copies_between_regions(), ElementsAre("Reshape -> Unknown", "Unknown -> Expand"));
}

TEST(Regions, TheHostHasWhatTheDeviceLacksOrItIsNotInside) {
  Sketch has, lacks;
  has.input("x").node("Shape", {"x"}, {"#s"}).node("Unknown", {"s"}, {"u"}, false);
  has.node("Div", {"x", "u"}, {"y"}, true, false);
  EXPECT_EQ(has.regions(), (Regions{{"Div", "Shape", "Unknown on host"}}));
  lacks.input("x").node("A", {"x"}, {"a"}, true, false).node("Unknown", {"a"}, {"u"}, false);
  lacks.node("Div", {"a", "u"}, {"y"}, true, false);
  EXPECT_EQ(lacks.regions(), Regions{});
}

// The body of a loop: its iteration number and condition are on the host, what it carries is not.
TEST(Placement, WhatALoopMakesOfItsConditionAndIterationNumberStaysOnTheCpu) {
  Sketch s;
  s.on_host("i").on_host("go").constant("last");
  s.node("Less", {"i", "last"}, {"more"}).node("And", {"more", "go"}, {"go_on"});
  s.node("Add", {"i", "carried"}, {"sum"}).node("Gather", {"table", "i"}, {"row"}, true, false);
  EXPECT_THAT(s.on_cpu(), ElementsAre("Less", "And"));
}

// A counter by which the loop ends, one by which it is cut, and a third that makes the first one; what nobody wants on
// the host goes on elsewhere, as what data makes does.
TEST(Placement, TheHostHandsOnWhatAConditionNeeds) {
  Sketch s;
  s.constant("one").input("data");
  s.node("Add", {"i", "step"}, {"i+"}).node("Less", {"i+", "most"}, {"d"}).node("next", {"#d"}, {}, true, false);
  s.node("Neg", {"step"}, {"step+"}).node("Sub", {"at", "one"}, {"at+"});
  s.node("Slice", {"x", "#at"}, {"part"}, true, false);
  s.node("Mul", {"idle", "one"}, {"idle+"}).node("Gather", {"table", "idle"}, {"row"}, true, false);
  s.node("Max", {"made", "one"}, {"made+"}).node("Exp", {"data"}, {"e"}, true, false);
  s.node("Cast", {"e"}, {"by data+"}).node("Equal", {"by data", "one"}, {"f"});
  using Names = std::vector<std::string>;
  EXPECT_EQ(s.carried({"i", "step", "at", "idle", "by data"}),
            (std::pair{Names{"i", "step", "at"}, Names{"Add", "Less", "Neg", "Sub"}}));
}

TEST(Placement, ACounterThatDataMakesIsNotOnTheHost) {
  Sketch s;
  s.constant("one").input("data");
  s.node("Add", {"i", "by"}, {"i+"}).node("Less", {"i+", "one"}, {"d"}).node("next", {"#d"}, {}, true, false);
  s.node("Exp", {"data"}, {"by+"}, true, false);
  EXPECT_THAT(s.carried({"i", "by"}).first, IsEmpty());
}

TEST(Placement, AnInputReadOnBothSidesIsCopied) {
  Sketch s;
  s.input("x");
  s.node("Relu", {"x"}, {"a"}, true, false).node("Unknown", {"x"}, {"b"}, false, false);
  EXPECT_THAT(s.copies(), ElementsAre("an input of the model -> Unknown"));
}

TEST(Placement, AConstantReadOnBothSidesIsNot) {
  Sketch s;
  s.constant("c");
  s.node("Relu", {"c"}, {"a"}, true, false).node("Unknown", {"c"}, {"b"}, false, false);
  EXPECT_THAT(s.copies(), IsEmpty());
}

}  // namespace
}  // namespace encore::plugin
