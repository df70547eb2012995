#pragma once
// Sums over the rows of a matrix, column by column, of whatever a Term makes of its elements.
//
// A block takes a tile of columns. A cell is 8 rows × 8 columns: two packs a row, eight rows in flight. Cells
// of one tile side by side, `groups` of them below each other, add up into shared memory until the rows are
// done; each cell has one owner, so only the last step, adding the groups pair by pair, needs barriers. Which numbers
// are added in which order depends on the matrix and the width of a tile, not on the block size.
//
// A tile is as wide as leaves enough blocks to fill a GPU: 8 columns of a matrix of 768, one sector of 32 bytes a row.
// (Splitting the rows over blocks would need scratch memory, which every byte formula would have to know.) On the host
// a few blocks are enough, so tiles are wide, and the cells are walked row by row: whole cache lines.

#include "memory/context.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

inline constexpr std::size_t kCell = 8, kCellsOfBlock = 512;

struct ColumnTiles {
  std::size_t columns;         // of a tile
  unsigned cells_across_log2;  // cells of a tile side by side, a power of two
  std::size_t groups;
  __host__ __device__ std::size_t cells() const { return groups << cells_across_log2; }
};

/// Tiles for a matrix [rows, width], at least `blocks` where that many cells lie side by side.
inline ColumnTiles column_tiles(std::size_t rows, std::size_t width, std::size_t blocks = kColumnSumBlocks) {
  unsigned log2 = 0;
  while (log2 < 5 && (kCell << log2) < width && (kCell << (log2 + 1)) * blocks <= width) ++log2;
  const std::size_t row_cells = std::max<std::size_t>(1, (rows + kCell - 1) / kCell);
  return {kCell << log2, log2, std::min(kCellsOfBlock >> log2, row_cells)};
}

// Term: at(row, column) is what is added up; add_cell_row(sum, row, column) adds at(row, column + k) to sum[k] for the
// kCell columns of a cell.
template <class Term, class Out>
__global__ void column_sum_kernel(Term term, Out* __restrict__ sums, std::size_t rows, std::size_t width,
                                  ColumnTiles tiles, bool accumulate) {
  float* partial = dynamic_shared<float>();
  const std::size_t across = std::size_t(1) << tiles.cells_across_log2;
  for (std::size_t tile : row_range((width + tiles.columns - 1) / tiles.columns)) {
    const std::size_t first = tile * tiles.columns;
    const std::size_t columns = width - first < tiles.columns ? width - first : tiles.columns;
    for (std::size_t i : block_range(tiles.cells() * kCell)) partial[i] = 0.0f;
    __syncthreads();
    for (std::size_t top = 0; top < rows; top += tiles.groups * kCell) {
      for (std::size_t i : block_range(tiles.cells())) {
        const std::size_t row = top + (i >> tiles.cells_across_log2) * kCell, column = (i & (across - 1)) * kCell;
        float* into = partial + i * kCell;
        if (row + kCell <= rows && column + kCell <= columns) {
          float sum[kCell];
          for (std::size_t k = 0; k < kCell; ++k) sum[k] = into[k];
          for (std::size_t r = 0; r < kCell; ++r) term.add_cell_row(sum, row + r, first + column);
          for (std::size_t k = 0; k < kCell; ++k) into[k] = sum[k];
        } else {
          for (std::size_t r = 0; r < kCell && row + r < rows; ++r)
            for (std::size_t k = 0; k < kCell && column + k < columns; ++k)
              into[k] += term.at(row + r, first + column + k);
        }
      }
    }
    __syncthreads();
    for (std::size_t groups = tiles.groups; groups > 1;) {
      const std::size_t half = (groups + 1) / 2;
      for (std::size_t i : block_range((groups - half) * tiles.columns))
        partial[i] += partial[half * tiles.columns + i];
      __syncthreads();
      groups = half;
    }
    for (std::size_t column : block_range(columns)) {
      const float sum = accumulate ? static_cast<float>(sums[first + column]) : 0.0f;
      sums[first + column] = static_cast<Out>(sum + partial[column]);
    }
    __syncthreads();  // the next tile writes partial again
  }
}

/// sums[width] (+)= the column sums of term over [rows, width].
template <class Term, class Out>
void launch_column_sum(Context& context, Term term, Out* sums, std::size_t rows, std::size_t width, bool accumulate,
                       std::size_t blocks = kColumnSumBlocks) {
  const ColumnTiles tiles = column_tiles(rows, width, blocks);
  launch(column_sum_kernel<Term, Out>,
         shape_for_short_rows((width + tiles.columns - 1) / tiles.columns, tiles.cells(),
                              tiles.cells() * kCell * sizeof(float)),
         context.stream(), term, sums, rows, width, tiles, accumulate);
}

}  // namespace oomlab::nn
