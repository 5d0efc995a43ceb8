// Writes out the order lists of the papers as text cells, by the rules of their tables: an oracle
// for the simulator that shares no code with the generators.
#pragma once
#include <string>
#include <vector>

#include "plan/plan_text.h"
#include "plan/simulate/costs.h"

namespace pipewright::orders {

using Cells = std::vector<std::vector<std::string>>;

inline std::string Cell(int stage, char kind, int microbatch) {
  return std::to_string(stage) + kind + std::to_string(microbatch);
}

inline Plan ToPlan(const Cells& cells) {
  std::string text;
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) text += (i ? "," : "") + line[i];
    text += "\n";
  }
  return ReadPlan(text, "order");
}

inline Plan GPipe(int p, int m) {
  Cells cells(p);
  for (int r = 0; r < p; ++r) {
    for (int i = 0; i < m; ++i) cells[r].push_back(Cell(r, 'F', i));
    for (int i = 0; i < m; ++i) cells[r].push_back(Cell(r, 'B', i));
  }
  return ToPlan(cells);
}

inline Plan OneFOneB(int p, int m) {
  Cells cells(p);
  for (int r = 0; r < p; ++r) {
    int warm = std::min(p - 1 - r, m);
    for (int i = 0; i < warm; ++i) cells[r].push_back(Cell(r, 'F', i));
    for (int i = 0; i < m; ++i) {
      if (warm + i < m) cells[r].push_back(Cell(r, 'F', warm + i));
      cells[r].push_back(Cell(r, 'B', i));
    }
  }
  return ToPlan(cells);
}

// k = 1: ZB-H1, 2: ZB-H2.
inline Plan ZeroBubble(int p, int m, int k) {
  Cells cells(p);
  for (int r = 0; r < p; ++r) {
    int warm = std::min(k * (p - 1 - r), m), w = 0;
    for (int i = 0; i < warm; ++i) cells[r].push_back(Cell(r, 'F', i));
    for (int i = 0; i < m; ++i) {
      if (warm + i < m) cells[r].push_back(Cell(r, 'F', warm + i));
      cells[r].push_back(Cell(r, 'I', i));
      if (warm + i >= k * (p - 1)) cells[r].push_back(Cell(r, 'W', w++));
    }
    while (w < m) cells[r].push_back(Cell(r, 'W', w++));
  }
  return ToPlan(cells);
}

// Megatron's order; p must divide m.
inline Plan Interleaved(int p, int m, int v) {
  Cells cells(p);
  for (int r = 0; r < p; ++r) {
    auto forward = [&](int k) {
      int chunk = k / p % v, i = k / (p * v) * p + k % p;
      return Cell(chunk * p + r, 'F', i);
    };
    auto backward = [&](int k) {
      int chunk = v - 1 - k / p % v, i = k / (p * v) * p + k % p;
      return Cell(chunk * p + r, 'B', i);
    };
    int total = m * v, warm = std::min(2 * (p - 1 - r) + (v - 1) * p, total);
    for (int k = 0; k < warm; ++k) cells[r].push_back(forward(k));
    for (int k = 0; k < total; ++k) {
      if (warm + k < total) cells[r].push_back(forward(warm + k));
      cells[r].push_back(backward(k));
    }
  }
  return ToPlan(cells);
}

inline Costs Uniform(double F, double I, double W, double latency = 0) {
  Costs costs;
  costs.stages.resize(1);
  costs.stages[0].F = F, costs.stages[0].I = I, costs.stages[0].W = W;
  costs.stages[0].B = I + W;
  costs.link.latency = latency;
  return costs;
}

}  // namespace pipewright::orders
