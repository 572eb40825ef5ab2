/* Every call of the C interface, and its errors. Needs the environment of every_call.cpp. */
#include "c_client.h"
#include "c_configoptions.h"
#include "c_dataset.h"
#include "c_logcontext.h"
#include "c_logger.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int right, const char* what, int line) {
    if (!right) {
        fprintf(stderr, "every_call.c:%d: %s\n  last error: %s\n  at %s\n", line, what, SRGetLastError(), SRGetLastErrorLocation());
        exit(1);
    }
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call) CHECK((call) == SRNoError)
#define FAILS(code, call) CHECK((call) == code && SRGetLastError()[0] != '\0')
#define T(text) text, strlen(text)

/* Whether the log has a line with this text. */
static int logged(const char* text) {
    char line[512];
    int found = 0;
    FILE* log = fopen(getenv("SR_LOG_FILE"), "r");
    CHECK(log != NULL);
    while (!found && fgets(line, sizeof line, log) != NULL)
        found = strstr(line, text) != NULL;
    fclose(log);
    return found;
}

static void* client;

static void tensors(void) {
    float values[2][3] = {{1, 2, 3}, {4, 5, 6}}, got[6];
    float* rows[2] = {values[0], values[1]};
    const size_t shape[] = {2, 3}, flat[] = {6};
    void* data = NULL;
    size_t *dims = NULL, n_dims = 0;
    SRTensorType type = SRTensorTypeInvalid;
    bool exists = false;
    OK(put_tensor(client, T("a"), values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    OK(put_tensor(client, T("a"), rows, shape, 2, SRTensorTypeFloat, SRMemLayoutNested));
    OK(get_tensor(client, T("a"), &data, &dims, &n_dims, &type, SRMemLayoutNested));
    CHECK(n_dims == 2 && dims[0] == 2 && dims[1] == 3 && type == SRTensorTypeFloat && ((float**)data)[1][2] == 6);
    OK(unpack_tensor(client, T("a"), got, flat, 1, SRTensorTypeFloat, SRMemLayoutContiguous));
    CHECK(memcmp(got, values, sizeof got) == 0);
    OK(unpack_tensor(client, T("a"), got, shape, 2, SRTensorTypeFloat, SRMemLayoutFortranContiguous));
    CHECK(got[1] == 4 && got[2] == 2);
    OK(copy_tensor(client, T("a"), T("b")));
    OK(rename_tensor(client, T("b"), T("c")));
    OK(tensor_exists(client, T("c"), &exists));
    CHECK(exists);
    OK(delete_tensor(client, T("c")));
    OK(tensor_exists(client, T("c"), &exists));
    CHECK(!exists);
    OK(key_exists(client, T("one.a"), &exists));
    CHECK(exists);
    OK(poll_key(client, T("one.a"), 1, 1, &exists));
    CHECK(exists);
    OK(poll_tensor(client, T("none"), 1, 1, &exists));
    CHECK(!exists);
    FAILS(SRRuntimeError, get_tensor(client, T("none"), &data, &dims, &n_dims, &type, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, unpack_tensor(client, T("a"), got, flat, 1, SRTensorTypeDouble, SRMemLayoutContiguous));
    FAILS(SRTypeError, put_tensor(client, T("x"), values, shape, 2, SRTensorTypeInvalid, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, T("x"), values, shape, 0, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, T("x"), values, shape, 2, SRTensorTypeFloat, SRMemLayoutInvalid));
    FAILS(SRParameterError, put_tensor(NULL, T("x"), values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRParameterError, put_tensor(client, NULL, 0, values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRParameterError, put_tensor(client, T("x"), NULL, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRParameterError, put_tensor(client, T("x"), values, NULL, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRParameterError, get_tensor(client, T("a"), NULL, &dims, &n_dims, &type, SRMemLayoutContiguous));
    FAILS(SRParameterError, unpack_tensor(client, T("a"), NULL, flat, 1, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRParameterError, tensor_exists(client, T("a"), NULL));
    FAILS(SRParameterError, rename_tensor(client, T("a"), NULL, 0));
    FAILS(SRParameterError, delete_tensor(NULL, T("a")));
    FAILS(SRRuntimeError, copy_tensor(client, T("none"), T("x")));
}

/* Arguments that lead to reads outside of the caller's memory, or to a wrong name, unless the library refuses them. */
static void bad_arguments(void) {
    float values[6] = {1, 2, 3, 4, 5, 6};
    const size_t shape[] = {2, 3}, overflow[] = {(size_t)1 << 62, 8};
    void* dataset = NULL;
    bool exists = true;
    const size_t counts[] = {17, (size_t)1 << 28, (size_t)1 << 60, (size_t)-1};
    for (size_t at = 0; at < sizeof counts / sizeof counts[0]; at++)
        FAILS(SRRuntimeError, put_tensor(client, T("x"), values, shape, counts[at], SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRTypeError, put_tensor(client, T("x"), values, shape, 2, (SRTensorType)99, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, T("x"), values, shape, 2, SRTensorTypeFloat, (SRMemoryLayout)99));
    FAILS(SRBadAllocError, put_tensor(client, T("x"), values, overflow, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, T("a\nb"), values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, T("\xff"), values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, put_tensor(client, "a\0b", 3, values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    OK(key_exists(client, "one.a\0b", 7, &exists));
    CHECK(!exists);
    OK(CDataSet(T("bad"), &dataset));
    FAILS(SRRuntimeError, add_tensor(dataset, T("t"), NULL, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, add_tensor(dataset, "t\0u", 3, values, shape, 2, SRTensorTypeFloat, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, add_tensor(dataset, T("t"), values, shape, 2, (SRTensorType)99, SRMemLayoutContiguous));
    FAILS(SRRuntimeError, add_meta_scalar(dataset, T("m"), values, (SRMetaDataType)99));
    OK(DeallocateDataSet(&dataset));
    OK(DeallocateDataSet(&dataset));
    FAILS(SRParameterError, put_dataset(client, dataset));
    FAILS(SRRuntimeError, set_model_from_file(client, T("x"), T("/tmp"), T("ONNX"), T("CPU"), 0, 0, 0, T(""), NULL, NULL, 0, NULL, NULL, 0));
}

static void in_place(void) {
    const size_t shape[] = {2, 3};
    void *draft = NULL, *data = NULL, *lease = NULL;
    const void* read = NULL;
    const size_t* dims = NULL;
    size_t n_dims = 0;
    SRTensorType type = SRTensorTypeInvalid;
    SRMemoryLayout layout = SRMemLayoutInvalid;
    OK(draft_tensor(client, shape, 2, SRTensorTypeInt32, SRMemLayoutFortranContiguous, &draft, &data));
    for (int at = 0; at < 6; at++)
        ((int32_t*)data)[at] = at;
    OK(put_draft(client, T("draft"), &draft));
    CHECK(draft == NULL);
    OK(lease_tensor(client, T("draft"), &lease, &read, &dims, &n_dims, &type, &layout));
    CHECK(n_dims == 2 && dims[1] == 3 && type == SRTensorTypeInt32 && layout == SRMemLayoutFortranContiguous);
    CHECK(((const int32_t*)read)[5] == 5);
    OK(DeallocateLease(&lease));
    OK(DeallocateLease(&lease));
    OK(draft_tensor(client, shape, 2, SRTensorTypeInt32, SRMemLayoutContiguous, &draft, &data));
    OK(DeallocateDraft(&draft));
    FAILS(SRParameterError, put_draft(client, T("draft"), &draft));
    FAILS(SRRuntimeError, draft_tensor(client, shape, 2, SRTensorTypeInt32, SRMemLayoutNested, &draft, &data));
    FAILS(SRRuntimeError, lease_tensor(client, T("none"), &lease, &read, &dims, &n_dims, &type, &layout));
    CHECK(lease == NULL);
}

static void datasets(void) {
    void *dataset = NULL, *fetched = NULL, *data = NULL;
    double values[] = {1, 2, 3}, got[3];
    const float numbers[] = {0.5f, 1.5f};
    const size_t shape[] = {3};
    size_t *dims = NULL, n = 0, *lengths = NULL, few[1], *room = few;
    char** strings = NULL;
    SRTensorType type = SRTensorTypeInvalid;
    SRMetaDataType kind = SRMetadataTypeInvalid;
    bool exists = false;
    OK(CDataSet(T("set"), &dataset));
    FAILS(SRRuntimeError, put_dataset(client, dataset));
    OK(add_tensor(dataset, T("field"), values, shape, 1, SRTensorTypeDouble, SRMemLayoutContiguous));
    OK(add_meta_scalar(dataset, T("number"), &numbers[0], SRMetadataTypeFloat));
    OK(add_meta_scalar(dataset, T("number"), &numbers[1], SRMetadataTypeFloat));
    OK(add_meta_string(dataset, T("text"), T("words")));
    OK(put_dataset(client, dataset));
    OK(dataset_exists(client, T("set"), &exists));
    CHECK(exists);
    OK(poll_dataset(client, T("set"), 1, 1, &exists));
    CHECK(exists);
    OK(copy_dataset(client, T("set"), T("copy")));
    OK(rename_dataset(client, T("copy"), T("moved")));
    OK(get_dataset(client, T("moved"), &fetched));
    OK(get_dataset_tensor(fetched, T("field"), &data, &dims, &n, &type, SRMemLayoutContiguous));
    CHECK(n == 1 && dims[0] == 3 && type == SRTensorTypeDouble && ((double*)data)[2] == 3);
    OK(unpack_dataset_tensor(fetched, T("field"), got, shape, 1, SRTensorTypeDouble, SRMemLayoutContiguous));
    CHECK(got[1] == 2);
    OK(get_meta_scalars(fetched, T("number"), &n, &kind, &data));
    CHECK(n == 2 && kind == SRMetadataTypeFloat && ((float*)data)[1] == 1.5f);
    OK(get_meta_strings(fetched, T("text"), &strings, &n, &lengths));
    CHECK(n == 1 && lengths[0] == 5 && strcmp(strings[0], "words") == 0);
    OK(get_tensor_names(fetched, &strings, &n, &lengths));
    CHECK(n == 1 && strcmp(strings[0], "field") == 0);
    OK(get_tensor_type(fetched, T("field"), &type));
    CHECK(type == SRTensorTypeDouble);
    n = 1;
    OK(get_tensor_dims(fetched, T("field"), &room, &n));
    CHECK(n == 1 && few[0] == 3);
    n = 0;
    FAILS(SRBadAllocError, get_tensor_dims(fetched, T("field"), &room, &n));
    CHECK(n == 1);
    OK(get_metadata_field_names(fetched, &strings, &n, &lengths));
    CHECK(n == 2 && lengths[1] == 4);
    OK(get_metadata_field_type(fetched, T("text"), &kind));
    CHECK(kind == SRMetadataTypeString);
    CHECK(strstr(dataset_to_string(fetched), "moved") != NULL);
    CHECK(dataset_to_string(NULL)[0] != '\0');
    FAILS(SRKeyError, get_dataset_tensor(fetched, T("none"), &data, &dims, &n, &type, SRMemLayoutContiguous));
    FAILS(SRKeyError, get_tensor_type(fetched, T("none"), &type));
    FAILS(SRKeyError, get_metadata_field_type(fetched, T("none"), &kind));
    FAILS(SRRuntimeError, get_meta_strings(fetched, T("number"), &strings, &n, &lengths));
    FAILS(SRRuntimeError, add_tensor(fetched, T("field"), values, shape, 1, SRTensorTypeDouble, SRMemLayoutContiguous));
    FAILS(SRParameterError, add_meta_scalar(fetched, T("number"), NULL, SRMetadataTypeFloat));
    FAILS(SRParameterError, add_meta_string(NULL, T("text"), T("words")));
    FAILS(SRParameterError, CDataSet(NULL, 0, &data));
    FAILS(SRParameterError, DeallocateDataSet(NULL));
    OK(DeallocateDataSet(&fetched));
    CHECK(fetched == NULL);
    FAILS(SRKeyError, get_dataset(client, T("none"), &fetched));
    OK(delete_dataset(client, T("moved")));
    FAILS(SRRuntimeError, delete_dataset(client, T("moved")));
    OK(DeallocateDataSet(&dataset));
}

static void lists(void) {
    void *dataset = NULL, **found = NULL, *two[2];
    int length = 0;
    size_t count = 0;
    bool done = false;
    OK(CDataSet(T("item"), &dataset));
    OK(add_meta_string(dataset, T("text"), T("words")));
    OK(put_dataset(client, dataset));
    OK(get_datasets_from_list(client, T("list"), &found, &count));
    CHECK(found == NULL && count == 0);
    OK(append_to_list(client, T("list"), dataset));
    OK(append_to_list(client, T("list"), dataset));
    OK(get_list_length(client, T("list"), &length));
    CHECK(length == 2);
    OK(poll_list_length(client, T("list"), 2, 1, 1, &done));
    CHECK(done);
    OK(poll_list_length_gte(client, T("list"), 3, 1, 1, &done));
    CHECK(!done);
    OK(poll_list_length_lte(client, T("list"), 2, 1, 1, &done));
    CHECK(done);
    OK(get_datasets_from_list(client, T("list"), &found, &count));
    CHECK(count == 2);
    OK(DeallocateDataSet(&found[0]));
    OK(DeallocateDataSet(&found[1]));
    free(found);
    OK(get_dataset_list_range(client, T("list"), -1, -1, &found, &count));
    CHECK(count == 1);
    OK(DeallocateDataSet(&found[0]));
    free(found);
    OK(_get_dataset_list_range_allocated(client, T("list"), 0, 1, two));
    OK(DeallocateDataSet(&two[0]));
    OK(DeallocateDataSet(&two[1]));
    FAILS(SRInternalError, _get_dataset_list_range_allocated(client, T("list"), 0, 2, two));
    OK(copy_list(client, T("list"), T("copy")));
    OK(rename_list(client, T("copy"), T("moved")));
    OK(delete_list(client, T("moved")));
    FAILS(SRRuntimeError, copy_list(client, T("none"), T("x")));
    FAILS(SRParameterError, rename_list(client, T(""), T("x")));
    FAILS(SRParameterError, poll_list_length(client, T("list"), -1, 1, 1, &done));
    FAILS(SRParameterError, append_to_list(client, T("list"), NULL));
    FAILS(SRParameterError, get_list_length(client, T("list"), NULL));
    OK(DeallocateDataSet(&dataset));
}

static void models(void) {
    const char *inputs[] = {"a"}, *outputs[] = {"b"}, *empty[] = {""}, *model = NULL, *script = NULL;
    const size_t lengths[] = {1}, none[] = {0};
    size_t length = 0;
    bool exists = false;
    char file[] = "/tmp/smartredis-c-XXXXXX";
    const int descriptor = mkstemp(file);
    FILE* stream = fdopen(descriptor, "w");
    fputs("an ONNX file", stream);
    fclose(stream);
    OK(set_model(client, T("model"), T("bytes"), T("ONNX"), T("CPU"), 0, 0, 0, T("tag"), empty, none, 1, NULL, NULL, 0));
    OK(set_model_multigpu(client, T("multi"), T("bytes"), T("ONNX"), 0, 1, 0, 0, 0, NULL, 0, NULL, NULL, 0, NULL, NULL, 0));
    OK(set_model_from_file(client, T("file"), T(file), T("ONNX"), T("CPU"), 0, 0, 0, T(""), NULL, NULL, 0, NULL, NULL, 0));
    OK(set_model_from_file_multigpu(client, T("files"), T(file), T("ONNX"), 0, 1, 0, 0, 0, T(""), NULL, NULL, 0, NULL, NULL, 0));
    OK(get_model(client, T("file"), &length, &model));
    CHECK(length == 12 && memcmp(model, "an ONNX file", 12) == 0);
    OK(model_exists(client, T("model"), &exists));
    CHECK(exists);
    OK(poll_model(client, T("none"), 1, 1, &exists));
    CHECK(!exists);
    FAILS(SRTimeoutError, run_model(client, T("model"), inputs, lengths, 1, outputs, lengths, 1));
    FAILS(SRTimeoutError, run_model_multigpu(client, T("model"), inputs, lengths, 1, outputs, lengths, 1, 0, 0, 1));
    FAILS(SRParameterError, run_model(client, T("model"), NULL, NULL, 0, outputs, lengths, 1));
    FAILS(SRParameterError, run_model(client, T("model"), empty, none, 1, outputs, lengths, 1));
    FAILS(SRRuntimeError, set_model(client, T("x"), T("bytes"), T("TFLITE"), T("CPU"), 0, 0, 0, T(""), NULL, NULL, 0, NULL, NULL, 0));
    CHECK(strstr(SRGetLastError(), "ONNX") != NULL);
    CHECK(logged("ERROR: tensorlend runs no TFLITE models"));
    FAILS(SRParameterError, set_model(client, T("x"), NULL, 0, T("ONNX"), T("CPU"), 0, 0, 0, T(""), NULL, NULL, 0, NULL, NULL, 0));
    OK(delete_model(client, T("model")));
    OK(delete_model_multigpu(client, T("multi"), 0, 1));
    FAILS(SRRuntimeError, set_script(client, T("s"), T("CPU"), T("script")));
    FAILS(SRRuntimeError, set_script_multigpu(client, T("s"), T("script"), 0, 1));
    FAILS(SRRuntimeError, set_script_from_file(client, T("s"), T("CPU"), T(file)));
    FAILS(SRRuntimeError, set_script_from_file_multigpu(client, T("s"), T(file), 0, 1));
    FAILS(SRRuntimeError, get_script(client, T("s"), &script, &length));
    CHECK(script == NULL && length == 0);
    FAILS(SRRuntimeError, run_script(client, T("s"), T("f"), inputs, lengths, 1, outputs, lengths, 1));
    FAILS(SRRuntimeError, run_script_multigpu(client, T("s"), T("f"), inputs, lengths, 1, outputs, lengths, 1, 0, 0, 1));
    FAILS(SRParameterError, run_script(client, T("s"), NULL, 0, inputs, lengths, 1, outputs, lengths, 1));
    FAILS(SRRuntimeError, delete_script(client, T("s")));
    FAILS(SRRuntimeError, delete_script_multigpu(client, T("s"), 0, 1));
    remove(file);
}

static void options_and_log(void) {
    void *options = NULL, *context = NULL, *other = NULL;
    int64_t number = 0;
    char* text = NULL;
    size_t length = 0;
    bool is = false;
    OK(create_configoptions_from_environment(T(""), &options));
    OK(get_string_option(options, T("SSKEYIN"), &text, &length));
    CHECK(length == 7 && strcmp(text, "one,two") == 0);
    OK(is_configured(options, T("NONE"), &is));
    CHECK(!is);
    OK(override_integer_option(options, T("NONE"), 7));
    OK(get_integer_option(options, T("NONE"), &number));
    CHECK(number == 7);
    OK(override_string_option(options, T("TEXT"), T("value")));
    OK(get_string_option(options, T("TEXT"), &text, &length));
    CHECK(strcmp(text, "value") == 0);
    FAILS(SRKeyError, get_integer_option(options, T("OTHER"), &number));
    FAILS(SRKeyError, get_string_option(options, T("OTHER"), &text, &length));
    CHECK(text == NULL && length == 0);
    FAILS(SRParameterError, get_integer_option(options, T(""), &number));
    FAILS(SRParameterError, get_integer_option(NULL, T("NONE"), &number));
    FAILS(SRParameterError, create_configoptions_from_environment(NULL, 0, &other));
    OK(CreateClient(options, T("with options"), &other));
    OK(DeleteCClient(&other));
    FAILS(SRParameterError, CreateClient(NULL, T("without"), &other));
    OK(DeallocateConfigOptions(&options));
    OK(SmartRedisCClient(false, T("deprecated"), &other));
    OK(DeleteCClient(&other));
    CHECK(other == NULL);
    FAILS(SRParameterError, SimpleCreateClient(NULL, 0, &other));
    FAILS(SRParameterError, SimpleCreateClient(T("name"), NULL));

    OK(SmartRedisCLogContext(T("context"), &context));
    log_data(context, LLInfo, T("data"));
    log_warning(client, LLInfo, T("warning"));
    log_error(context, LLInfo, T("error"));
    log_data_string(T("text"), LLInfo, T("data"));
    log_warning_string(T("text"), LLInfo, T("warning"));
    log_error_string(T("text"), LLInfo, T("error"));
    log_data(NULL, LLInfo, T("a line on standard output"));
    OK(DeallocateLogContext(&context));
    FAILS(SRParameterError, SmartRedisCLogContext(NULL, 0, &context));
}

static void prefixes(void) {
    bool exists = true;
    OK(set_data_source(client, T("two")));
    OK(tensor_exists(client, T("a"), &exists));
    CHECK(!exists);
    OK(set_data_source(client, T("one")));
    FAILS(SRRuntimeError, set_data_source(client, T("three")));
    OK(use_tensor_ensemble_prefix(client, false));
    OK(tensor_exists(client, T("one.a"), &exists));
    CHECK(exists);
    OK(use_tensor_ensemble_prefix(client, true));
    OK(use_dataset_ensemble_prefix(client, true));
    OK(use_list_ensemble_prefix(client, true));
    OK(use_model_ensemble_prefix(client, false));
    FAILS(SRParameterError, use_model_ensemble_prefix(NULL, false));
}

int main(void) {
    OK(SimpleCreateClient(T("every call"), &client));
    CHECK(strstr(client_to_string(client), "every call") != NULL && client_to_string(NULL)[0] != '\0');
    tensors();
    bad_arguments();
    in_place();
    datasets();
    lists();
    models();
    options_and_log();
    prefixes();
    OK(DeleteCClient(&client));
    FAILS(SRParameterError, DeleteCClient(NULL));
    puts("every call of C worked");
    return 0;
}
