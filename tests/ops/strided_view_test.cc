// Views against the elements that they speak of.
#include "ops/shape/viewed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace encore::ops {
namespace {

using testing::ElementsAre;
using Numbers = std::vector<int64_t>;

// Where each element of a view is, in the view's order.
Numbers places(const StridedView& view) {
  Numbers at{view.offset()};
  for (const StridedView::Steps& steps : view.steps()) {
    Numbers next;
    for (int64_t place : at)
      for (int64_t i = 0; i < steps.count; ++i) next.push_back(place + i * steps.stride);
    at = std::move(next);
  }
  return at;
}

// The same done by moving.
struct Moved {
  Shape shape;
  Numbers elements;
  explicit Moved(const Shape& shape) : shape(shape), elements(size_t(shape.count())) {
    std::iota(elements.begin(), elements.end(), 0);
  }
  void transpose(const Numbers& order) {
    Numbers dims;
    for (int64_t axis : order) dims.push_back(shape[int(axis)]);
    const Shape to(dims);
    const Numbers from = strides_of(shape), into = strides_of(to);
    Numbers made(elements.size());
    for (int64_t i = 0; i < to.count(); ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < order.size(); ++d) at += i / into[d] % dims[d] * from[size_t(order[d])];
      made[size_t(i)] = elements[size_t(at)];
    }
    shape = to;
    elements = std::move(made);
  }
  void select(int axis, int64_t index) {
    slice(axis, index, 1);
    Numbers dims(shape.dims().begin(), shape.dims().end());
    dims.erase(dims.begin() + axis);
    shape = Shape(dims);
  }
  void slice(int axis, int64_t begin, int64_t count) {
    const int64_t inner = shape.count(axis + 1, shape.rank()), dim = shape[axis];
    Numbers made, dims(shape.dims().begin(), shape.dims().end());
    for (size_t i = 0; i < elements.size(); ++i)
      if (const int64_t at = int64_t(i) / inner % dim; at >= begin && at < begin + count) made.push_back(elements[i]);
    dims[size_t(axis)] = count;
    shape = Shape(dims);
    elements = std::move(made);
  }
  // A new axis, `count` times all that is inside of it.
  void repeat(int axis, int64_t count) {
    const size_t inner = size_t(shape.count(axis, shape.rank()));
    Numbers made, dims(shape.dims().begin(), shape.dims().end());
    for (size_t first = 0; first < elements.size(); first += inner)
      for (int64_t i = 0; i < count; ++i)
        made.insert(made.end(), elements.begin() + ptrdiff_t(first), elements.begin() + ptrdiff_t(first + inner));
    dims.insert(dims.begin() + axis, count);
    shape = Shape(dims);
    elements = std::move(made);
  }
  bool is_dense() const {
    for (size_t i = 0; i < elements.size(); ++i)
      if (elements[i] != int64_t(i)) return false;
    return true;
  }
};

// Factors of a number in random places.
Shape any_shape(std::mt19937& random, int64_t count) {
  Numbers dims(1 + random() % 5, 1);
  for (const int64_t prime : {2, 3, 5})
    for (; count % prime == 0; count /= prime) dims[random() % dims.size()] *= prime;
  dims[random() % dims.size()] *= count;
  return Shape(dims);
}

// To as many places as there are elements, where a reshape is a view.
void expect_can_be_moved(const StridedView& view, const Shape& to) {
  Numbers all(size_t(view.shape().count()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(places(view.in_order()), all);
  StridedView moved = view.as_they_lie(to);
  EXPECT_EQ(moved.shape(), view.shape());
  Numbers made = places(moved);
  ASSERT_TRUE(moved.reshape(to));
  EXPECT_EQ(places(moved), made);
  std::ranges::sort(made);
  EXPECT_EQ(made, all);
}

TEST(StridedView, IsWhereTheElementsAre) {
  std::mt19937 random(1);
  int views = 0, moves = 0;
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = any_shape(random, 360);
    StridedView view(shape);
    Moved moved(shape);
    for (int step = 0; step < 6; ++step) {
      const int rank = moved.shape.rank();
      if (const auto what = random() % 6; what == 0) {
        const Shape to = any_shape(random, moved.shape.count());
        if (!view.reshape(to)) {  // and it is as it was
          expect_can_be_moved(view, to);
          ++moves;
          break;
        }
        moved.shape = to;
      } else if (what == 1 && rank > 1) {
        const int axis = int(random() % size_t(rank));
        const int64_t dim = moved.shape[axis], index = int64_t(random() % size_t(dim));
        view.select(axis - rank * int(random() % 2), index - dim * int(random() % 2));
        moved.select(axis, index);
      } else if (what == 2) {
        const int axis = int(random() % size_t(rank));
        const int64_t dim = moved.shape[axis], begin = int64_t(random() % size_t(dim)),
                      count = 1 + int64_t(random() % size_t(dim - begin));
        if (!view.slice(axis - rank * int(random() % 2), begin, count, dim)) break;
        moved.slice(axis, begin, count);
      } else if (what == 3 && rank < 5) {
        const int axis = int(random() % size_t(rank + 1));
        const int64_t count = 1 + int64_t(random() % 3);
        view.unsqueeze({axis});
        view.repeat(axis, count);
        moved.repeat(axis, count);
      } else {
        Numbers order(static_cast<size_t>(rank));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        view.transpose(order);
        moved.transpose(order);
      }
      ++views;
    }
    ASSERT_EQ(view.shape(), moved.shape);
    ASSERT_EQ(places(view), moved.elements);
    ASSERT_EQ(view.is_dense(), moved.is_dense());
    if (const auto strides = view.strides()) {
      Numbers at{view.offset()};
      for (int d = 0; d < view.shape().rank(); ++d) {
        Numbers next;
        for (int64_t place : at)
          for (int64_t i = 0; i < view.shape()[d]; ++i) next.push_back(place + i * (*strides)[size_t(d)]);
        at = std::move(next);
      }
      ASSERT_EQ(at, moved.elements);
    }
  }
  EXPECT_GT(views, 5000);
  EXPECT_GT(moves, 200);
}

// Windows that become a grid, with their channels where they were: innermost.
TEST(StridedView, WhatIsMovedStaysBesideItsNeighbours) {
  StridedView view(Shape{8, 8, 7, 7, 64});
  view.transpose({4, 0, 2, 1, 3});
  const Shape grid{64, 7, 8, 7, 8};
  ASSERT_FALSE(view.reshape(grid));
  StridedView moved = view.as_they_lie(grid);
  ASSERT_TRUE(moved.reshape(grid));
  EXPECT_THAT(*moved.strides(), ElementsAre(1, 64 * 8 * 56, 64 * 56, 64 * 8, 64));
  const std::vector<ViewStep> steps = view_steps("transpose 4,0,2,1,3; reshape 64,56,56; transpose 1,2,0");
  EXPECT_EQ(copies(StridedView(Shape{8, 8, 7, 7, 64}), steps), 1);
}

// Windows of a picture that is shifted.
TEST(StridedView, ARollIsACopyWithWhatIsAround) {
  const auto count = [](const char* steps, const Shape& shape) {
    return copies(StridedView(shape), view_steps(steps));
  };
  const Shape picture{2, 12, 12, 8}, cut{2, 3, 3, 4, 4, 8};
  EXPECT_EQ(count("roll -3,3,-2,3", picture), 1);
  EXPECT_EQ(count("roll -3,3; reshape 2,3,4,3,4,8; transpose 0,1,3,2,4,5; reshape 18,16,8", picture), 1);
  EXPECT_EQ(count("transpose 0,1,3,2,4,5; reshape 2,12,12,8; roll -3,9,-2,9", cut), 1);
  EXPECT_EQ(count("roll -3,3; roll -2,3", picture), 2);
  EXPECT_EQ(count("roll -3,3; transpose 0,3,1,2", picture), 2);
  EXPECT_EQ(count("transpose 0,3,1,2; roll -1,3", picture), 2);
  EXPECT_EQ(count("roll -3,3; transpose 0,2,1,3; reshape 2,9,16,8", picture), 2);
}

TEST(StridedView, ASliceIsOfTheSizeThatIsSpokenOf) {
  StridedView view(Shape{2, 9});
  EXPECT_THROW(view.slice(1, 0, 3, 8), Error);
  EXPECT_THROW(view.slice(1, 7, 3, 9), Error);
  EXPECT_THROW(view.slice(1, -1, 3, 9), Error);
  EXPECT_THROW(view.slice(2, 0, 3, 9), Error);
  ASSERT_TRUE(view.slice(-1, 7, 2, 9));
  EXPECT_EQ(view.shape(), (Shape{2, 2}));
  EXPECT_EQ(view.offset(), 7);
}

TEST(StridedView, StepsAreTextAndBack) {
  const std::string text =
      "reshape 0,-1,3; transpose 2,0,1; slice -1,0,2,6; select 0,-1; squeeze 0; unsqueeze 1,2; repeat 1,4; "
      "roll -2,3,-1,1";
  EXPECT_EQ(text_of(view_steps(text)), text);
  EXPECT_EQ(text_of(view_steps("")), "");
  EXPECT_THROW(view_steps("turn 0,1"), Error);
}

TEST(StridedView, OfPackedHeads) {
  StridedView view(Shape{2, 9, 48});  // rows of q, k and v with two heads of 8
  ASSERT_TRUE(view.reshape({2, 9, 3, 2, 8}));
  view.transpose({2, 0, 3, 1, 4});
  view.select(0, -1);
  EXPECT_EQ(view.shape(), (Shape{2, 2, 9, 8}));
  EXPECT_EQ(view.offset(), 32);
  EXPECT_THAT(*view.strides(), ElementsAre(9 * 48, 8, 48, 1));
}

// Heads of keys for groups of queries' heads.
TEST(StridedView, OfRepeatedHeads) {
  StridedView view(Shape{2, 9, 3, 8});
  view.transpose({0, 2, 1, 3});
  view.unsqueeze({2});
  view.repeat(2, 4);
  ASSERT_TRUE(view.reshape({2, 12, 9, 8}));
  EXPECT_FALSE(view.strides());
  EXPECT_EQ(view.drop_repeats(0), 1);
  EXPECT_EQ(view.drop_repeats(1), 4);
  EXPECT_EQ(view.shape(), (Shape{2, 3, 9, 8}));
  EXPECT_THAT(*view.strides(), ElementsAre(9 * 24, 8, 24, 1));
  EXPECT_ANY_THROW(view.repeat(1, 2));
}

TEST(StridedView, OneHeadForAll) {
  StridedView view(Shape{2, 1, 9, 8});
  view.repeat(1, 4);
  EXPECT_THAT(*view.strides(), ElementsAre(72, 0, 8, 1));
  EXPECT_FALSE(view.is_dense());
  EXPECT_EQ(view.drop_repeats(-3), 4);
  EXPECT_TRUE(view.is_dense());
}

TEST(StridedView, WhatLiesApartCanBeTakenApart) {
  StridedView view(Shape{4, 2, 48});
  view.transpose({1, 0, 2});
  ASSERT_TRUE(view.reshape({8, 48}));
  EXPECT_FALSE(view.strides());
  ASSERT_TRUE(view.reshape({2, 4, 48}));
  EXPECT_THAT(*view.strides(), ElementsAre(48, 96, 1));
  ASSERT_TRUE(view.reshape({2, 2, 2, 48}));
  EXPECT_FALSE(view.reshape({384 / 3, 3}) && view.strides());
}

TEST(StridedView, WhatIsDenseTakesAnyShape) {
  StridedView view(Shape{2, 3, 16});
  ASSERT_TRUE(view.reshape({3, 2, 2, 8}));
  EXPECT_THAT(*view.strides(), ElementsAre(32, 16, 8, 1));
  ASSERT_TRUE(view.reshape({96}));
  EXPECT_THAT(*view.strides(), ElementsAre(1));
}

TEST(StridedView, OfNothing) {
  StridedView view(Shape{3, 0, 4});
  EXPECT_TRUE(view.reshape({0, 7}));
  EXPECT_EQ(view.shape(), (Shape{0, 7}));
  EXPECT_ANY_THROW(view.select(0, 0));
}

TEST(StridedView, OfManyAxes) {
  StridedView view(Shape(Numbers(20, 2)));
  Numbers back(20);
  std::iota(back.rbegin(), back.rend(), 0);
  view.transpose(back);
  EXPECT_EQ(view.shape().rank(), 20);
  EXPECT_EQ((*view.strides())[3], 8);
  view.transpose(back);
  ASSERT_TRUE(view.reshape({1 << 5, 1 << 15}));
  EXPECT_TRUE(view.is_dense());
  EXPECT_THAT(*view.strides(), ElementsAre(1 << 15, 1));
}

TEST(StridedView, RefusesWhatIsNone) {
  StridedView view(Shape{2, 3});
  EXPECT_ANY_THROW(view.reshape({5}));
  EXPECT_ANY_THROW(view.transpose({0, 0}));
  EXPECT_ANY_THROW(view.transpose({0}));
  EXPECT_ANY_THROW(view.squeeze({0}));
  EXPECT_ANY_THROW(view.unsqueeze({4}));
  EXPECT_ANY_THROW(view.select(1, 3));
  EXPECT_ANY_THROW(view.select(2, 0));
  view.unsqueeze({0, -1});
  EXPECT_EQ(view.shape(), (Shape{1, 2, 3, 1}));
  view.squeeze({-1, 0});
  EXPECT_EQ(view.shape(), (Shape{2, 3}));
}

}  // namespace
}  // namespace encore::ops
