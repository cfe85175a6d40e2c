# Bakes an image of EC2 with headrace in /opt/headrace: `packer init` and `packer build` of this file.
# How it is used: docs/tutorials/first-run-on-ec2.md. Without it: docs/how-to/run-on-ec2.md.

packer {
  required_version = ">= 1.9"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3"
    }
  }
}

variable "region" {
  type = string
}

variable "subnet_id" {
  type        = string
  description = "Public subnet in which the image is made"
}

variable "wheel" {
  type        = string
  description = "headrace-*.whl, from `pip wheel --no-deps .`"
}

variable "base" {
  type        = string
  default     = "deep-learning"
  description = "deep-learning: Ubuntu with NVIDIA's driver, EFA, NVMe mounted; or debian, for CPUs"
}

variable "extra_index_url" {
  type        = string
  default     = ""
  description = "https://download.pytorch.org/whl/cpu for PyTorch without CUDA"
}

locals {
  base = {
    deep-learning = {
      parameter = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
      user      = "ubuntu"
      device    = "/dev/sda1"
      gib       = 100
    }
    debian = {
      parameter = "/aws/service/debian/release/12/latest/amd64"
      user      = "admin"
      device    = "/dev/xvda"
      gib       = 20
    }
  }[var.base]
}

data "amazon-parameterstore" "base" {
  region = var.region
  name   = local.base.parameter
}

source "amazon-ebs" "headrace" {
  region                                    = var.region
  source_ami                                = data.amazon-parameterstore.base.value
  ami_name                                  = "headrace-${var.base}-{{timestamp}}"
  instance_type                             = "c6i.2xlarge"
  subnet_id                                 = var.subnet_id
  associate_public_ip_address               = true
  temporary_security_group_source_public_ip = true
  shutdown_behavior                         = "terminate"
  ssh_username                              = local.base.user
  ssh_clear_authorized_keys                 = true
  imds_support                              = "v2.0"

  metadata_options {
    http_tokens = "required"
  }
  launch_block_device_mappings {
    device_name           = local.base.device
    volume_size           = local.base.gib
    volume_type           = "gp3"
    delete_on_termination = true
  }
  tags = {
    Name = "headrace"
    base = "{{ .SourceAMIName }}"
  }
}

build {
  sources = ["source.amazon-ebs.headrace"]

  provisioner "file" {
    sources     = [var.wheel, "${path.root}/../../constraints.txt"]
    destination = "/tmp/"
  }
  provisioner "shell" {
    script           = "${path.root}/install.sh"
    environment_vars = ["PIP_EXTRA_INDEX_URL=${var.extra_index_url}"]
    execute_command  = "sudo {{ .Vars }} bash {{ .Path }} /tmp"
  }
}
