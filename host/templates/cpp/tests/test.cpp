// Run by `wasmill build-c --test`, without WebAssembly: the host is one in memory.
#include "testing/wasmill_test.h"

int main() {
    test_begin("{}");
    test_record("ada", "{\"page\":\"/\",\"milliseconds\":30}");
    test_record("bo", "{\"page\":\"/help\",\"milliseconds\":5}");
    test_record("ada", "{\"page\":\"/help\",\"milliseconds\":20}");
    test_record("ada", "{\"page\":\"/help\"}");
    test_batch();
    test_emitted(0, "out", "ada", "{\"user\":\"ada\",\"count\":1,\"slowest_milliseconds\":30}");
    test_emitted(2, "out", "ada", "{\"user\":\"ada\",\"count\":2,\"slowest_milliseconds\":30}");
    test_rejected(3, "it has no `milliseconds`");
    return test_end();
}
