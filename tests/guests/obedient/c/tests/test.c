/* What the SDK of C promises, over the host in memory. */
#include "testing/wasmill_test.h"

static int64_t count_of(const char *key) {
    wasmill_bytes value;
    if (!test_state_of("counts", key, &value)) return -1;
    test_that(value.length == 8);
    return *(const int64_t *)value.data;
}

static void a_refused_record_has_done_nothing(void) {
    test_begin("{}");
    test_record("a", "1");
    test_record("a", "refuse");
    test_record("b", "refuse");
    test_record("a", "2");
    test_batch();
    test_rejected(1, "told to, at 2");
    test_rejected(2, "told to, at 1");
    test_emitted_count(2);
    test_emitted(0, "out", "a", "1");
    test_emitted(1, "out", "a", "2");
    test_sent(1, "names", "a", "2");
    test_that(count_of("a") == 2 && count_of("b") == -1 && test_counter("seen") == 2);
}

static void state_lasts_from_batch_to_batch_until_it_is_deleted(void) {
    test_begin("{}");
    test_record("a", "1");
    test_record("b", "1");
    test_batch();
    test_record("a", "1");
    test_record("b", "delete");
    test_batch();
    test_that(count_of("a") == 2 && count_of("b") == -1);
    test_record("b", "1");
    test_batch();
    test_that(count_of("b") == 1);
}

static void others_are_looked_up_and_updated(void) {
    int64_t one = 1;
    test_begin("{}");
    test_other("names", "a", "ada");
    test_record("a", "name");
    test_record("b", "name");
    test_batch();
    test_state("texts", "a", "ada");
    test_state("texts", "b", NULL);
    test_updated(1, "names", "b", WASMILL_ADD_S64, wasmill_of(&one, sizeof one));
}

static void a_value_of_another_size_refuses_its_record(void) {
    test_begin("{}");
    test_record("a", "misread");
    test_record("a", "1");
    test_batch();
    test_rejected(0, "the stored value has another size than what it is read into: raise the table's schema version when values change");
    test_that(count_of("a") == 1);
}

static void many_keys_and_long_values_fit(void) {
    enum { KEYS = 3000, LONG = 200000 };
    static char value[LONG + 1];
    for (size_t index = 0; index < LONG; index++) value[index] = (char)('a' + index % 26);
    test_begin("{}");
    for (int index = 0; index < KEYS; index++) {
        wasmill_bytes key = wasmill_of(&index, sizeof index);
        test_record_of(key, wasmill_text(index == 7 ? value : "1"), index);
        test_record_of(key, wasmill_text("late"), index);
    }
    test_batch();
    test_emitted_count(3 * KEYS);
    test_that(test_counter("seen") == 2 * KEYS);
}

static void json_is_read_as_far_as_needed(void) {
    wasmill_bytes object = wasmill_text(" {\"a\\\"\" : {\"n\":[1,\"}\"]} ,\"text\":\"x y\", \"n\" : -12 ,\"last\":true}"), member, text;
    int64_t number;
    test_that(wasmill_json_member(object, "n", &member) && wasmill_number(member, &number) && number == -12);
    test_that(wasmill_json_member(object, "text", &member) && wasmill_json_text(member, &text) && wasmill_equal(text, wasmill_text("x y")));
    test_that(wasmill_json_member(object, "last", &member) && wasmill_equal(member, wasmill_text("true")));
    test_that(!wasmill_json_member(object, "none", &member));
    static const char *const broken[] = {"", "{", "[]", "{\"n\"", "{\"n\":", "{\"n\":}", "{\"n\":\"", "{\"n\" 1}", "{\"m\":1 \"n\":2}"};
    for (size_t index = 0; index < sizeof broken / sizeof *broken; index++) test_that(!wasmill_json_member(wasmill_text(broken[index]), "n", &member));
}

static void numbers_are_whole_and_of_64_bits(void) {
    int64_t number;
    test_that(wasmill_number(wasmill_text("9223372036854775807"), &number) && number == INT64_MAX);
    test_that(wasmill_number(wasmill_text("-9223372036854775808"), &number) && number == INT64_MIN);
    static const char *const bad[] = {"", "-", "+1", "1.5", "1e3", "9223372036854775808", "-9223372036854775809", " 1"};
    for (size_t index = 0; index < sizeof bad / sizeof *bad; index++) test_that(!wasmill_number(wasmill_text(bad[index]), &number));
}

int main(void) {
    a_refused_record_has_done_nothing();
    state_lasts_from_batch_to_batch_until_it_is_deleted();
    others_are_looked_up_and_updated();
    a_value_of_another_size_refuses_its_record();
    many_keys_and_long_values_fit();
    json_is_read_as_far_as_needed();
    numbers_are_whole_and_of_64_bits();
    return test_end();
}
