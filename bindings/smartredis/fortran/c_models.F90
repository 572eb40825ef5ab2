! The C functions of models and scripts.
module smartredis_c_models
use iso_c_binding, only : c_ptr, c_char, c_bool, c_int, c_int64_t, c_size_t
use fortran_c_interop, only : enum_kind
implicit none
public

interface
  integer(enum_kind) function c_set_model_from_file(c_client, name, name_length, model_file, model_file_length, &
      backend, backend_length, device, device_length, batch_size, min_batch_size, min_batch_timeout, tag, tag_length, &
      inputs, input_lengths, n_inputs, outputs, output_lengths, n_outputs) bind(c, name="set_model_from_file")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model_file, backend, device, tag
    integer(c_size_t), value :: name_length, model_file_length, backend_length, device_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_set_model_from_file

  integer(enum_kind) function c_set_model_from_file_multigpu(c_client, name, name_length, model_file, &
      model_file_length, backend, backend_length, first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout, &
      tag, tag_length, inputs, input_lengths, n_inputs, outputs, output_lengths, n_outputs) &
      bind(c, name="set_model_from_file_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model_file, backend, tag
    integer(c_size_t), value :: name_length, model_file_length, backend_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_set_model_from_file_multigpu

  integer(enum_kind) function c_set_model(c_client, name, name_length, model, model_length, backend, backend_length, &
      device, device_length, batch_size, min_batch_size, min_batch_timeout, tag, tag_length, inputs, input_lengths, &
      n_inputs, outputs, output_lengths, n_outputs) bind(c, name="set_model")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model, backend, device, tag
    integer(c_size_t), value :: name_length, model_length, backend_length, device_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_set_model

  integer(enum_kind) function c_set_model_multigpu(c_client, name, name_length, model, model_length, backend, &
      backend_length, first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout, tag, tag_length, inputs, &
      input_lengths, n_inputs, outputs, output_lengths, n_outputs) bind(c, name="set_model_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, model, backend, tag
    integer(c_size_t), value :: name_length, model_length, backend_length, tag_length, n_inputs, n_outputs
    integer(c_int), value :: first_gpu, num_gpus, batch_size, min_batch_size, min_batch_timeout
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_set_model_multigpu

  integer(enum_kind) function c_get_model(c_client, name, name_length, model_length, model) bind(c, name="get_model")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_size_t) :: model_length
    type(c_ptr) :: model
  end function c_get_model

  integer(enum_kind) function c_run_model(c_client, name, name_length, inputs, input_lengths, n_inputs, outputs, &
      output_lengths, n_outputs) bind(c, name="run_model")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_run_model

  integer(enum_kind) function c_run_model_multigpu(c_client, name, name_length, inputs, input_lengths, n_inputs, &
      outputs, output_lengths, n_outputs, offset, first_gpu, num_gpus) bind(c, name="run_model_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(c_int), value :: offset, first_gpu, num_gpus
  end function c_run_model_multigpu

  integer(enum_kind) function c_delete_model(c_client, name, name_length) bind(c, name="delete_model")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
  end function c_delete_model

  integer(enum_kind) function c_delete_model_multigpu(c_client, name, name_length, first_gpu, num_gpus) &
      bind(c, name="delete_model_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: first_gpu, num_gpus
  end function c_delete_model_multigpu

  integer(enum_kind) function c_set_script_from_file(c_client, name, name_length, device, device_length, script_file, &
      script_file_length) bind(c, name="set_script_from_file")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, device, script_file
    integer(c_size_t), value :: name_length, device_length, script_file_length
  end function c_set_script_from_file

  integer(enum_kind) function c_set_script_from_file_multigpu(c_client, name, name_length, script_file, &
      script_file_length, first_gpu, num_gpus) bind(c, name="set_script_from_file_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, script_file
    integer(c_size_t), value :: name_length, script_file_length
    integer(c_int), value :: first_gpu, num_gpus
  end function c_set_script_from_file_multigpu

  integer(enum_kind) function c_set_script(c_client, name, name_length, device, device_length, script, script_length) &
      bind(c, name="set_script")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, device, script
    integer(c_size_t), value :: name_length, device_length, script_length
  end function c_set_script

  integer(enum_kind) function c_set_script_multigpu(c_client, name, name_length, script, script_length, first_gpu, &
      num_gpus) bind(c, name="set_script_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, script
    integer(c_size_t), value :: name_length, script_length
    integer(c_int), value :: first_gpu, num_gpus
  end function c_set_script_multigpu

  integer(enum_kind) function c_get_script(c_client, name, name_length, script, script_length) &
      bind(c, name="get_script")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: script
    integer(c_size_t) :: script_length
  end function c_get_script

  integer(enum_kind) function c_run_script(c_client, name, name_length, func, function_length, inputs, input_lengths, &
      n_inputs, outputs, output_lengths, n_outputs) bind(c, name="run_script")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, func
    integer(c_size_t), value :: name_length, function_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
  end function c_run_script

  integer(enum_kind) function c_run_script_multigpu(c_client, name, name_length, func, function_length, inputs, &
      input_lengths, n_inputs, outputs, output_lengths, n_outputs, offset, first_gpu, num_gpus) &
      bind(c, name="run_script_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name, func
    integer(c_size_t), value :: name_length, function_length, n_inputs, n_outputs
    type(c_ptr), dimension(*) :: inputs, outputs
    integer(c_size_t), dimension(*) :: input_lengths, output_lengths
    integer(c_int), value :: offset, first_gpu, num_gpus
  end function c_run_script_multigpu

  integer(enum_kind) function c_delete_script(c_client, name, name_length) bind(c, name="delete_script")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
  end function c_delete_script

  integer(enum_kind) function c_delete_script_multigpu(c_client, name, name_length, first_gpu, num_gpus) &
      bind(c, name="delete_script_multigpu")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: first_gpu, num_gpus
  end function c_delete_script_multigpu
end interface

end module smartredis_c_models
