! Signatures that several C functions have.
module smartredis_c_signatures
use iso_c_binding, only : c_ptr, c_char, c_bool, c_int, c_size_t
use fortran_c_interop, only : enum_kind
implicit none
public

abstract interface
  function signature_new(text, text_length, new) bind(c) result(code)
    import
    character(kind=c_char), dimension(*) :: text
    integer(c_size_t), value :: text_length
    type(c_ptr) :: new
    integer(enum_kind) :: code
  end function signature_new

  function signature_object(object, name, name_length, other) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: other
    integer(enum_kind) :: code
  end function signature_object

  function signature_free(object) bind(c) result(code)
    import
    type(c_ptr) :: object
    integer(enum_kind) :: code
  end function signature_free

  function signature_two_texts(object, first, first_length, second, second_length) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: first, second
    integer(c_size_t), value :: first_length, second_length
    integer(enum_kind) :: code
  end function signature_two_texts

  function signature_name(object, name, name_length) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(enum_kind) :: code
  end function signature_name

  function signature_tensor(object, name, name_length, data, dims, n_dims, type, mem_layout) bind(c) &
      result(code)
    import
    type(c_ptr), value :: object, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_dims
    integer(c_size_t), dimension(*) :: dims
    integer(enum_kind), value :: type, mem_layout
    integer(enum_kind) :: code
  end function signature_tensor

  function signature_exists(object, name, name_length, exists) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    logical(c_bool) :: exists
    integer(enum_kind) :: code
  end function signature_exists

  function signature_poll(object, name, name_length, poll_frequency_ms, num_tries, exists) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: poll_frequency_ms, num_tries
    logical(c_bool) :: exists
    integer(enum_kind) :: code
  end function signature_poll

  function signature_prefix(object, use_prefix) bind(c) result(code)
    import
    type(c_ptr), value :: object
    logical(c_bool), value :: use_prefix
    integer(enum_kind) :: code
  end function signature_prefix

  function signature_poll_length(object, name, name_length, list_length, poll_frequency_ms, num_tries, &
      poll_result) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: list_length, poll_frequency_ms, num_tries
    logical(c_bool) :: poll_result
    integer(enum_kind) :: code
  end function signature_poll_length

  function signature_string(object) bind(c) result(text)
    import
    type(c_ptr), value :: object
    type(c_ptr) :: text
  end function signature_string

  function signature_type(object, name, name_length, type) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(enum_kind) :: type, code
  end function signature_type

  function signature_array(object, name, name_length, array, array_length) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: array
    integer(c_size_t) :: array_length
    integer(enum_kind) :: code
  end function signature_array

  function signature_set_model(c_client, name, name_length, model, model_length, backend, backend_length, &
      device, device_length, batch_size, min_batch_size, min_batch_timeout, tag, tag_length, inputs, input_lengths, &
      n_inputs, outputs, output_lengths, n_outputs) bind(c) result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model, backend, device, tag
    integer(c_size_t), value :: name_length, model_length, backend_length, device_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(enum_kind) :: code
  end function signature_set_model

  function signature_set_model_multigpu(c_client, name, name_length, model, model_length, backend, &
      backend_length, first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout, tag, tag_length, inputs, &
      input_lengths, n_inputs, outputs, output_lengths, n_outputs) bind(c) result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model, backend, tag
    integer(c_size_t), value :: name_length, model_length, backend_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(enum_kind) :: code
  end function signature_set_model_multigpu

  function signature_name_multigpu(object, name, name_length, first_gpu, num_gpus) bind(c) result(code)
    import
    type(c_ptr), value :: object
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: first_gpu, num_gpus
    integer(enum_kind) :: code
  end function signature_name_multigpu

  function signature_set_script(c_client, name, name_length, device, device_length, script, script_length) &
      bind(c) result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, device, script
    integer(c_size_t), value :: name_length, device_length, script_length
    integer(enum_kind) :: code
  end function signature_set_script

  function signature_set_script_multigpu(c_client, name, name_length, script, script_length, first_gpu, &
      num_gpus) bind(c) result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, script
    integer(c_size_t), value :: name_length, script_length
    integer(c_int), value :: first_gpu, num_gpus
    integer(enum_kind) :: code
  end function signature_set_script_multigpu
end interface

end module smartredis_c_signatures
