// Products of the same rows by constants, as one which has the columns of all.
#pragma once
#include <vector>

#include "fuse/match.h"

namespace encore::fuse {

// Of a product by constants how many columns it has, or zero: not known, or no such product.
int64_t columns_of(const Match& match, const Step& product);
// A constant that is added to each row of so many columns, with no more dimensions than these have.
bool is_constant_row(const Match& match, int v, int64_t columns, size_t rank);
// A Gemm that is MatMul, with a bias or without.
bool is_plain_gemm(const Match& match, int s);
// A product of float or halves by a constant, with nothing added but a bias; a Gemm if it is as MatMul, or as
// FusedMatMul with transB.
bool is_plain_product(const Match& match, int s);
// Whether these can be one: nobody else reads their weights. One may have a bias that the other has not.
bool can_join(const Match& match, const Step& product, const Step& other);

// One step for such products. Their columns come in turns of so many each, or, with 0, all of one before the next ones.
// It has these attributes besides.
Step join_products(Match& match, const std::vector<int>& products, int64_t turn, int output,
                   const ops::Attributes& more = {});
// One product, whose columns come in this order, with these attributes besides.
Step with_columns(Match& match, int product, const std::vector<int64_t>& order, int output,
                  const ops::Attributes& more);

}  // namespace encore::fuse
