// Datasets.
#include "content.h"
#include <cstring>

namespace SmartRedis {

namespace {
/// Fields that exceed a value's metadata are the bytes of this tensor, which programs do not see.
constexpr const char* SPILLED = ".fields";
constexpr size_t METADATA_BYTES_MAX = 60 * 1024;

void give_strings(Arena& arena, const std::vector<std::string>& strings, char**& data, size_t& n_strings, size_t*& lengths) {
    data = static_cast<char**>(arena.allocate(strings.size() * sizeof(char*)));
    lengths = static_cast<size_t*>(arena.allocate(strings.size() * sizeof(size_t)));
    n_strings = strings.size();
    for (size_t at = 0; at < n_strings; at++) {
        lengths[at] = strings[at].size();
        data[at] = static_cast<char*>(arena.allocate(lengths[at] + 1));
        std::memcpy(data[at], strings[at].c_str(), lengths[at] + 1);
    }
}
} // namespace

const Tensor* DataSet::Content::find(const std::string& wanted) const {
    for (const auto& each : tensors)
        if (each.first == wanted)
            return &each.second;
    return nullptr;
}

const Tensor& DataSet::Content::tensor(const std::string& wanted) const {
    const Tensor* found = find(wanted);
    if (found == nullptr)
        throw SRKeyException("dataset \"" + name + "\" has no tensor \"" + wanted + "\"");
    return *found;
}

DataSet::Content& DataSet::content() const {
    if (!content_)
        throw SRParameterException("the dataset was moved to another variable");
    return *content_;
}

DataSet::DataSet(const std::string& name) : SRObject(name), content_(new Content(name)) {}
DataSet::DataSet(const DataSet& dataset) : SRObject(dataset), content_(new Content(dataset.content())) {}
DataSet::DataSet(DataSet&& dataset) = default;
DataSet& DataSet::operator=(DataSet&& dataset) = default;
DataSet::~DataSet() = default;

DataSet& DataSet::operator=(const DataSet& dataset) {
    if (this != &dataset)
        *this = DataSet(dataset);
    return *this;
}

void DataSet::add_tensor(const std::string& name, const void* data, const std::vector<size_t>& dims, const SRTensorType type,
                         const SRMemoryLayout mem_layout) {
    if (content().find(name) != nullptr)
        throw SRRuntimeException("dataset \"" + content().name + "\" has a tensor \"" + name + "\" already");
    if (element_bytes(type) == 0)
        throw SRRuntimeException("tensor \"" + name + "\": element type " + std::to_string(int(type)) + " is unknown");
    check_tensor(name, data, dims, mem_layout);
    Tensor tensor(type, dims);
    to_row_major(tensor.data(), data, dims, element_bytes(type), mem_layout);
    content().tensors.emplace_back(name, std::move(tensor));
}

void DataSet::add_meta_scalar(const std::string& name, const void* data, const SRMetaDataType type) {
    if (data == nullptr)
        throw SRRuntimeException("the data of metadata field \"" + name + "\" is NULL");
    content().fields.add_number(name, data, type);
}

void DataSet::add_meta_string(const std::string& name, const std::string& data) { content().fields.add_string(name, data); }

void DataSet::get_tensor(const std::string& name, void*& data, std::vector<size_t>& dims, SRTensorType& type,
                         const SRMemoryLayout mem_layout) const {
    const Tensor& tensor = content().tensor(name);
    data = in_layout(content().arena, tensor, mem_layout);
    dims = tensor.dims();
    type = tensor.type();
}

void DataSet::get_tensor(const std::string& name, void*& data, size_t*& dims, size_t& n_dims, SRTensorType& type,
                         const SRMemoryLayout mem_layout) const {
    std::vector<size_t> sizes;
    get_tensor(name, data, sizes, type, mem_layout);
    dims = content().arena.copy(sizes);
    n_dims = sizes.size();
}

void DataSet::unpack_tensor(const std::string& name, void* data, const std::vector<size_t>& dims, const SRTensorType type,
                            const SRMemoryLayout mem_layout) {
    const Tensor& tensor = content().tensor(name);
    if (tensor.type() != type)
        throw SRRuntimeException("tensor \"" + name + "\" has type " + type_name(tensor.type()) + ", and the memory " +
                                 type_name(type));
    check_tensor(name, data, dims, mem_layout);
    if (elements(dims) != elements(tensor.dims()) || (mem_layout == SRMemLayoutNested && dims != tensor.dims()))
        throw SRRuntimeException("tensor \"" + name + "\" has other dimensions than the memory");
    from_row_major(data, tensor.data(), tensor.dims(), element_bytes(type), mem_layout);
}

void DataSet::get_meta_scalars(const std::string& name, void*& data, size_t& length, SRMetaDataType& type) const {
    const std::string_view numbers = content().fields.numbers(name);
    type = content().fields.type(name);
    length = numbers.size() / Fields::bytes(type);
    data = content().arena.allocate(numbers.size());
    std::memcpy(data, numbers.data(), numbers.size());
}

std::vector<std::string> DataSet::get_meta_strings(const std::string& name) const { return content().fields.strings(name); }

void DataSet::get_meta_strings(const std::string& name, char**& data, size_t& n_strings, size_t*& lengths) const {
    give_strings(content().arena, get_meta_strings(name), data, n_strings, lengths);
}

bool DataSet::has_field(const std::string& field_name) const { return content().fields.has(field_name); }
void DataSet::clear_field(const std::string& field_name) { content().fields.clear(field_name); }
std::string DataSet::get_name() const { return content().name; }

void DataSet::set_name(std::string name) {
    if (name.empty())
        throw SRParameterException("the name of a dataset cannot be empty");
    content().name = std::move(name);
}

std::vector<std::string> DataSet::get_tensor_names() const {
    std::vector<std::string> names;
    for (const auto& each : content().tensors)
        names.push_back(each.first);
    return names;
}

void DataSet::get_tensor_names(char**& data, size_t& n_strings, size_t*& lengths) const {
    give_strings(content().arena, get_tensor_names(), data, n_strings, lengths);
}

SRTensorType DataSet::get_tensor_type(const std::string& name) const { return content().tensor(name).type(); }
const std::vector<size_t> DataSet::get_tensor_dims(const std::string& name) const { return content().tensor(name).dims(); }
std::vector<std::string> DataSet::get_metadata_field_names() const { return content().fields.names(); }

void DataSet::get_metadata_field_names(char**& data, size_t& n_strings, size_t*& lengths) const {
    give_strings(content().arena, get_metadata_field_names(), data, n_strings, lengths);
}

SRMetaDataType DataSet::get_metadata_field_type(const std::string& name) const { return content().fields.type(name); }

std::string DataSet::to_string() const {
    std::string text = "DataSet \"" + content().name + "\"\n  tensors:\n";
    for (const auto& each : content().tensors) {
        text += "    " + each.first + ": " + type_name(each.second.type()) + " [";
        for (const size_t size : each.second.dims())
            text += std::to_string(size) + ' ';
        text.back() = ']';
        text += '\n';
    }
    text += "  metadata fields:\n";
    for (const std::string& field : content().fields.names())
        text += "    " + field + ": " + Fields::name(content().fields.type(field)) + '\n';
    return text;
}

Draft DatasetCalls::to_draft(const DataSet& dataset, const tensorlend_client* session) {
    const DataSet::Content& content = dataset.content();
    const std::string what = "dataset \"" + content.name + "\"";
    if (content.tensors.empty() && content.fields.empty())
        throw SRRuntimeException(what + " is empty: add a tensor or a metadata field first");
    Draft draft;
    check(tensorlend_create_dataset(session, draft.place()), what);
    const auto add = [&](const std::string& name, SRTensorType type, const Dims& dims, const void* data, size_t bytes) {
        Draft member = create_draft(session, type, dims, SRMemLayoutContiguous, what);
        std::memcpy(tensorlend_draft_data(member.get()), data, bytes);
        check(tensorlend_dataset_add(draft.get(), name.c_str(), member.place()), what);
    };
    for (const auto& each : content.tensors)
        add(each.first, each.second.type(), each.second.dims(), each.second.data(), each.second.bytes());
    const std::string json = content.fields.to_json();
    if (json.size() > METADATA_BYTES_MAX)
        add(SPILLED, SRTensorTypeUint8, {json.size()}, json.data(), json.size());
    else
        check(tensorlend_draft_set_metadata(draft.get(), json.data(), json.size()), what);
    return draft;
}

DataSet DatasetCalls::from_lease(const std::string& name, const tensorlend_lease* lease) {
    DataSet dataset(name);
    uint64_t bytes = 0;
    const void* metadata = tensorlend_lease_metadata(lease, &bytes);
    std::string_view json(static_cast<const char*>(metadata), size_t(metadata == nullptr ? 0 : bytes));
    std::string spilled;
    for (uint64_t at = 0; at < tensorlend_lease_members(lease); at++) {
        const tensorlend_tensor* member = tensorlend_lease_member(lease, at);
        Tensor tensor = copied(lease, *member, member->name, "dataset \"" + name + "\"");
        if (std::strcmp(member->name, SPILLED) == 0) {
            spilled.assign(static_cast<const char*>(tensor.data()), tensor.bytes());
            json = spilled;
        } else {
            dataset.content().tensors.emplace_back(member->name, std::move(tensor));
        }
    }
    dataset.content().fields = Fields::from_json(json);
    return dataset;
}

} // namespace SmartRedis
