// Runs the fuzz target of tests/fuzz on real files and on random damage to them, without libFuzzer.
#include <gtest/gtest.h>

#include <random>


#include "base/files/read_file.h"
#include "tests/fuzz/plan_text_fuzzer.cc"

TEST(PlanFuzz, DamagedFilesAreRefusedOrReturn) {
  std::mt19937 random(3);
  for (const char* file :
       {"data/schedules/dualpipev_4rank_10mb.csv", "data/schedules/zb1p_2rank_2stagep_compute.csv",
        "golden/plan/1f1b.csv", "golden/plan/three_steps.csv", "golden/plan/replicas_4_3_1.csv"}) {
    std::string whole = pipewright::ReadFile(std::string(TEST_DIR "/") + file);
    for (int n = 0; n < 1500; ++n) {
      std::string text = whole;
      for (int edits = 1 + static_cast<int>(random() % 4); edits-- > 0 && !text.empty();) {
        size_t at = random() % text.size(), from = random() % text.size();
        size_t length = random() % 12;
        const char alphabet[] = "0123456789FBIW,\n();><#@SENDRCV_ \r\0";
        switch (random() % 4) {
          case 0:
            text[at] = alphabet[random() % sizeof alphabet];
            break;
          case 1:
            text.erase(at, length);
            break;
          case 2:
            text.insert(at, text.substr(from, length));
            break;
          default:
            text.insert(at, 1, alphabet[random() % sizeof alphabet]);
        }
      }
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    }
  }
}
